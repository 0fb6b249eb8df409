#include "openai/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <iterator>

#include "text/utf8.h"

namespace halfbyte {
namespace {

// ASCII that stands for itself.
bool IsPlain(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
}

void AppendEscaped(std::string& out, char c) {
  constexpr std::string_view kShort = "\b\t\n\f\r\"\\";
  constexpr std::string_view kLetters = "btnfr\"\\";
  if (const size_t at = kShort.find(c); at != std::string_view::npos) {
    out += '\\';
    out += kLetters[at];
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint8_t>(c));
  }
}

}  // namespace

void AppendJsonString(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && IsPlain(text[end])) ++end;
    out.append(text, i, end - i);
    if (end == text.size()) break;
    i = end;
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      AppendEscaped(out, text[i++]);
      continue;
    }
    const Utf8Step step = NextUtf8(text.substr(i));
    const bool whole = step.part == Utf8Part::kCharacter;
    out += whole ? text.substr(i, step.length) : kReplacementCharacter;
    i += step.length;
  }
  out += '"';
}

std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(out, text);
  return out;
}

void AppendLogprob(std::string& out, double logprob) {
  if (std::isinf(logprob)) {
    out += "-9999.0";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", logprob);
  }
}

}  // namespace halfbyte
