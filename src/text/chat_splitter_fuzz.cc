// Any bytes in any pieces: the same reasoning and content, without a mark. The input's first byte
// says whether the answer starts in reasoning; its first half, read as lengths, cuts the second.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/chat_splitter.h"

namespace {

using halfbyte::ChatSplitter;

void Add(ChatSplitter::Pieces& to, const ChatSplitter::Pieces& pieces) {
  to.reasoning += pieces.reasoning;
  to.content += pieces.content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view lengths = all.substr(0, size / 2);
  const std::string_view bytes = all.substr(size / 2);
  const bool reasoning = !lengths.empty() && lengths[0] % 2 != 0;
  ChatSplitter cut(reasoning), whole(reasoning);
  ChatSplitter::Pieces joined, expected;
  size_t at = 0;
  for (const char length : lengths) {
    const size_t count = std::min<size_t>(static_cast<uint8_t>(length) % 8, bytes.size() - at);
    Add(joined, cut.Push(bytes.substr(at, count)));
    HB_CHECK(cut.held() <= 13, "{} bytes are held", cut.held());
    at += count;
  }
  Add(joined, cut.Push(bytes.substr(at)));
  Add(joined, cut.Flush());
  Add(expected, whole.Push(bytes));
  Add(expected, whole.Flush());
  HB_CHECK(joined.reasoning == expected.reasoning && joined.content == expected.content,
           "the pieces give another answer");
  HB_CHECK(cut.suppressed() == whole.suppressed(), "the pieces suppress something else");
  HB_CHECK(reasoning || joined.reasoning.empty(), "reasoning from nowhere");
  return 0;
}
