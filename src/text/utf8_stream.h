// Bytes of tokens in, UTF-8 text out, in whatever pieces the bytes come (server.md §1.9).
//
//   Utf8Stream stream;
//   for (...) text += stream.Push(bytes);
//   text += stream.Flush();
//
// Law: every split of the same bytes gives the same text, and every piece is valid UTF-8 by itself.
// An incomplete end (at most 3 bytes) is held back; a maximal invalid part becomes one U+FFFD as
// soon as it is proved invalid, or at Flush.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace halfbyte {

class Utf8Stream {
 public:
  // The text that `bytes` completes; may be empty.
  std::string Push(std::string_view bytes);

  // End of the stream: what is held back becomes U+FFFD. The stream is as new afterwards.
  std::string Flush();

  size_t held() const { return held_.size(); }  // bytes held back

 private:
  std::string held_;  // the start of a character, 0..3 bytes
};

// Whole texts at once: Push and Flush.
std::string ToValidUtf8(std::string_view bytes);

}  // namespace halfbyte
