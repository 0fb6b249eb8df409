#include "cli/commands.h"

namespace halfbyte {

void AddCommands(CLI::App& app) {
  AddInspect(app);
  AddVerify(app);
  AddConvert(app);
  AddDoctor(app);
  AddGenerate(app);
  AddLogits(app);
  AddPerplexity(app);
  AddCalibrate(app);
  AddServe(app);
  AddBench(app);
}

}  // namespace halfbyte
