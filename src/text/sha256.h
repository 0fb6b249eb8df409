// SHA-256 (FIPS 180-4), to name the content of a file as `sha256sum` does.
#pragma once

#include <string>
#include <string_view>

namespace halfbyte {

// 64 lower-case hex digits.
std::string Sha256(std::string_view bytes);

}  // namespace halfbyte
