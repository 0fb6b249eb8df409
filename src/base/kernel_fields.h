// Files of the kernel with lines "NAME: NUMBER kB", such as /proc/meminfo. Internal to src/base.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace halfbyte {

// The bytes that a line states; none if there is no such line.
inline std::optional<int64_t> ReadKernelBytes(const std::filesystem::path& path,
                                              std::string_view name) {
  std::ifstream file(path);
  std::string field;
  while (file >> field) {
    if (int64_t kibibytes = 0; field == name && file >> kibibytes) return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

}  // namespace halfbyte
