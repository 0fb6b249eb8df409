// Unicode normalization (UAX #15), by ICU: the composed forms, which tokenizer files ask for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_token_finder.h"

namespace halfbyte {

enum class UnicodeForm { kAsIs, kNfc, kNfkc };

// `text`, valid UTF-8, in `form`; nullopt if it is in that form already. `ranges` of the text, in
// order and disjoint, become the ranges of the result that hold nothing from outside of them: a
// character composed across a border belongs to no range.
// Error: text that would grow beyond 2 GiB.
Result<std::optional<std::string>> ToForm(UnicodeForm form, std::string_view text,
                                          std::vector<ByteRange>* ranges);

}  // namespace halfbyte
