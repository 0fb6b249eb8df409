#include "checkpoint/finding.h"

#include <algorithm>

namespace halfbyte {

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "?";
}

Finding FindingOf(const Error& error) {
  const size_t colon = error.message.find(": ");
  if (colon == std::string::npos) return {Severity::kError, "checkpoint", error.message};
  return {Severity::kError, error.message.substr(0, colon), error.message.substr(colon + 2)};
}

bool HasErrors(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.severity == Severity::kError; });
}

Status StatusOf(const Findings& findings, const std::string& what, size_t limit) {
  std::string list;
  size_t errors = 0;
  for (const Finding& finding : findings) {
    if (finding.severity != Severity::kError) continue;
    if (++errors > limit) continue;
    if (!list.empty()) list += "; ";
    list += finding.where + ": " + finding.message;
  }
  if (errors == 0) return {};
  if (errors > limit) list += fmt::format("; and {} more", errors - limit);
  return MakeError("{}: {}", what, list);
}

}  // namespace halfbyte
