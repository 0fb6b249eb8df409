#include "text/utf8.h"

#include <simdjson.h>

#include <cstdint>

#include "base/check.h"

namespace halfbyte {
namespace {

struct LeadByte {
  size_t length;       // of the whole character; 0: no character starts so
  uint8_t second_low;  // allowed range of the second byte; the others are 80..BF
  uint8_t second_high;
};

LeadByte Classify(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};  // a continuation byte, or an overlong form
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (lead == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // above: beyond U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  HB_CHECK(!text.empty(), "no text");
  const LeadByte lead = Classify(static_cast<uint8_t>(text[0]));
  if (lead.length == 0) return {Utf8Part::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Part::kIncomplete, i};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Part::kInvalid, i};
  }
  return {Utf8Part::kCharacter, lead.length};
}

bool IsValidUtf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

}  // namespace halfbyte
