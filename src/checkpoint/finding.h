// What inspect, verify and the loader have to say about a checkpoint: a list of findings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace halfbyte {

enum class Severity : uint8_t {
  kNote,     // worth knowing
  kWarning,  // a loader copes, results may suffer
  kError     // a loader refuses, or would compute garbage
};

const char* SeverityName(Severity severity);

struct Finding {
  Severity severity = Severity::kNote;
  std::string where;    // tensor, file or config field
  std::string message;  // a sentence that can stand alone after "where: "
};

using Findings = std::vector<Finding>;

// An Error "where: message" as a finding.
Finding FindingOf(const Error& error);

bool HasErrors(const Findings& findings);

// Fails if there are errors among the findings: one line that lists the first `limit` of them and
// counts the others. `what` begins the message.
Status StatusOf(const Findings& findings, const std::string& what, size_t limit = 20);

}  // namespace halfbyte
