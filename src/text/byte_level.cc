#include "text/byte_level.h"

#include "text/utf8.h"

namespace halfbyte {
namespace {

constexpr int kCharacters = 0x180;

constexpr std::array<int16_t, kCharacters> MakeBytes() {
  std::array<int16_t, kCharacters> bytes = {};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    bytes[ByteLevelCharacter(static_cast<uint8_t>(byte))] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, kCharacters> kBytes = MakeBytes();

}  // namespace

std::string SpellByte(uint8_t byte) {
  const uint32_t point = ByteLevelCharacter(byte);
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

std::optional<std::string> UnspellBytes(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Step step = NextUtf8(spelling);
    if (step.part != Utf8Part::kCharacter || step.length > 2) return std::nullopt;
    const auto lead = static_cast<uint8_t>(spelling[0]);
    const uint32_t point =
        step.length == 1 ? lead : (lead & 0x1Fu) << 6 | (static_cast<uint8_t>(spelling[1]) & 0x3Fu);
    if (point >= kCharacters || kBytes[point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[point]));
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace halfbyte
