#include "server/version.h"

#include "base/json.h"
#include "server/commit.h"

namespace halfbyte {

std::string ProgramVersion() { return HALFBYTE_PROJECT_VERSION; }
std::string ProgramCommit() { return kCommit; }

std::string VersionBody(const std::string& device) {
  return Json{{"version", ProgramVersion()}, {"commit", ProgramCommit()}, {"device", device}}
      .dump();
}

}  // namespace halfbyte
