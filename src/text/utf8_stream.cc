#include "text/utf8_stream.h"

#include "text/utf8.h"

namespace halfbyte {

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.part == Utf8Part::kIncomplete) {
      held_ = bytes;
      break;
    }
    text +=
        step.part == Utf8Part::kCharacter ? bytes.substr(0, step.length) : kReplacementCharacter;
    bytes.remove_prefix(step.length);
  }
  return text;
}

std::string Utf8Stream::Flush() {
  // What is held could have become one character, so it is one maximal part.
  std::string text(held_.empty() ? std::string_view() : kReplacementCharacter);
  held_.clear();
  return text;
}

std::string ToValidUtf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.Push(bytes);
  text += stream.Flush();
  return text;
}

}  // namespace halfbyte
