// halfbyte doctor MODEL_DIR [--json]
#include "cli/command.h"
#include "cli/commands.h"
#include "text/chat_doctor.h"

namespace halfbyte {

void AddDoctor(CLI::App& app) {
  struct Flags {
    std::string directory;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App& command = *app.add_subcommand(
      "doctor", "Checks that chats get the prompts the model was trained with.");
  command.add_option("MODEL_DIR", flags->directory, "Model directory")->required();
  command.add_flag("--json", flags->json, "Print everything as JSON");
  OnRun(command, [flags]() -> Result<ExitCode> {
    HB_ASSIGN_OR_RETURN(const ChatDiagnosis diagnosis, DiagnoseChat(flags->directory));
    if (flags->json) {
      PrintJson(DiagnosisJson(diagnosis));
    } else {
      fmt::print("{}", DiagnosisText(diagnosis));
    }
    return diagnosis.healthy() ? ExitCode::kOk : ExitCode::kFailed;
  });
}

}  // namespace halfbyte
