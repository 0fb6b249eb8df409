// How "byte-level" vocabularies spell bytes: printable Latin-1 characters stand for themselves, the
// other 68 bytes, in order, for U+0100, U+0101, ... so that every byte string has a printable
// spelling (GPT-2; the ByteLevel parts of the Hugging Face tokenizer format).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace halfbyte {

// The character that spells `byte`: below U+0180.
constexpr uint32_t ByteLevelCharacter(uint8_t byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  if (printable(byte)) return byte;
  uint32_t rank = 0;
  for (int b = 0; b < byte; ++b) rank += printable(b) ? 0 : 1;
  return 0x100 + rank;
}

// That character in UTF-8: "Ġ" for a space.
std::string SpellByte(uint8_t byte);

// The bytes that `spelling` stands for; nullopt if some character stands for none. Valid UTF-8
// only.
std::optional<std::string> UnspellBytes(std::string_view spelling);

}  // namespace halfbyte
