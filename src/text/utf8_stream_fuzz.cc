// Any bytes in any pieces: the same valid UTF-8. The input's first half, read as lengths, cuts the
// second.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view lengths = all.substr(0, size / 2);
  const std::string_view bytes = all.substr(size / 2);
  halfbyte::Utf8Stream stream;
  std::string joined;
  size_t at = 0;
  for (const char length : lengths) {
    const size_t count = std::min<size_t>(static_cast<uint8_t>(length) % 8, bytes.size() - at);
    const std::string piece = stream.Push(bytes.substr(at, count));
    HB_CHECK(halfbyte::IsValidUtf8(piece), "a piece at {} is broken", at);
    joined += piece;
    at += count;
  }
  joined += stream.Push(bytes.substr(at));
  joined += stream.Flush();
  HB_CHECK(joined == halfbyte::ToValidUtf8(bytes), "the pieces give another text");
  HB_CHECK(halfbyte::IsValidUtf8(joined), "broken UTF-8");
  HB_CHECK(!halfbyte::IsValidUtf8(bytes) || joined == bytes, "valid text was changed");
  return 0;
}
