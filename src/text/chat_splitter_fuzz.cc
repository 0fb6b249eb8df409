// Any tokens in any pieces: the same reasoning and content. The input's first byte says whether the
// answer starts in reasoning; its first half, read as lengths, cuts the second. In that, bytes from
// 0xF8 on, which no text has, are control tokens.
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

constexpr std::string_view kControl[] = {
    halfbyte::kThink, halfbyte::kThinkEnd, halfbyte::kDsml[0], halfbyte::kDsml[1],
    "<｜User｜>",     "<｜User｜>",        "<｜User｜>",       "<｜User｜>"};

bool IsControl(char byte) { return static_cast<uint8_t>(byte) >= 0xF8; }

void Push(ChatSplitter& splitter, std::string_view bytes, ChatSplitter::Pieces& to) {
  while (!bytes.empty()) {
    const auto end = std::ranges::find_if(bytes, IsControl) - bytes.begin();
    Add(to, splitter.Push(bytes.substr(0, static_cast<size_t>(end))));
    bytes.remove_prefix(static_cast<size_t>(end));
    if (bytes.empty()) return;
    Add(to, splitter.PushControl(kControl[static_cast<uint8_t>(bytes.front()) - 0xF8]));
    bytes.remove_prefix(1);
  }
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
    Push(cut, bytes.substr(at, count), joined);
    HB_CHECK(cut.held() <= 4, "{} bytes are held", cut.held());
    at += count;
  }
  Push(cut, bytes.substr(at), joined);
  Add(joined, cut.Flush());
  Push(whole, bytes, expected);
  Add(expected, whole.Flush());
  HB_CHECK(joined.reasoning == expected.reasoning && joined.content == expected.content,
           "the pieces give another answer");
  HB_CHECK(cut.suppressed() == whole.suppressed(), "the pieces suppress something else");
  HB_CHECK(reasoning || joined.reasoning.empty(), "reasoning from nowhere");
  return 0;
}
