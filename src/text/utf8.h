// UTF-8 one character at a time, with the parts that are not UTF-8 told apart from the parts that
// are merely cut. Rule: Unicode 15, table 3-7 (well-formed byte sequences) and section 3.9 (maximal
// subparts), which is also what browsers and Python's errors="replace" do.
#pragma once

#include <cstddef>
#include <string_view>

namespace halfbyte {

enum class Utf8Part {
  kCharacter,   // one complete character
  kInvalid,     // a maximal invalid part: no continuation can make it a character
  kIncomplete,  // the text ends inside what may still become a character
};

struct Utf8Step {
  Utf8Part part;
  size_t length;  // bytes of the part: 1..4, 1..3, 1..3
};

// What `text` starts with. `text` must not be empty.
Utf8Step NextUtf8(std::string_view text);

bool IsValidUtf8(std::string_view text);

// U+FFFD, which stands for one maximal invalid part.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace halfbyte
