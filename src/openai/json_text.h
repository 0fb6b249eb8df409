// JSON written straight into a string: the hot path of streams, where a tree of values would cost
// more than the text.
#pragma once

#include <string>
#include <string_view>

namespace halfbyte {

// `text` as a JSON string with its quotes. What is not UTF-8 becomes U+FFFD, so the result is
// always valid; control characters are escaped, so it has no line breaks.
void AppendJsonString(std::string& out, std::string_view text);
std::string JsonString(std::string_view text);

// A log-probability: -infinity is written -9999.0.
void AppendLogprob(std::string& out, double logprob);

}  // namespace halfbyte
