// Which program this is.
#pragma once

#include <string>

namespace halfbyte {

std::string ProgramVersion();  // "0.1.0"
std::string ProgramCommit();   // of the sources it was built from: "3f11ae3", "unknown" without git

// The body of GET /version.
std::string VersionBody(const std::string& device);

}  // namespace halfbyte
