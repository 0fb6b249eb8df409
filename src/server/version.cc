#include "server/version.h"

#include "base/json.h"

namespace halfbyte {

std::string ProgramVersion() { return HALFBYTE_PROJECT_VERSION; }

std::string VersionBody(const std::string& device) {
  return Json{{"version", ProgramVersion()}, {"commit", ProgramCommit()}, {"device", device}}
      .dump();
}

}  // namespace halfbyte
