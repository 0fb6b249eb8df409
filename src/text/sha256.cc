#include "text/sha256.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>

namespace halfbyte {

std::string Sha256(std::string_view bytes) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest.data());
  std::string hex;
  for (const uint8_t byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace halfbyte
