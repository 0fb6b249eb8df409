// tokenizer.json files hold regular expressions in the Ruby dialect of Oniguruma, which the
// reference library runs. PCRE2 reads the same letters differently in places; this is the
// translation.
//
// What means the same in both passes through. What differs is rewritten (\s \d \w \v \uHHHH
// \p{Script}, classes in classes, && in classes, captures). What we do not translate is an error
// that names it, so that no pattern silently matches something else: back references, \b, \h, \R,
// POSIX brackets, named groups, inline options other than (?i:, verbs, a{2}? and a{2,3}+.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

// `pattern` is valid UTF-8. The result is for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE with LF
// newlines, has no capturing groups, and may still fail to compile.
Result<std::string> TranslateRegex(std::string_view pattern);

}  // namespace halfbyte
