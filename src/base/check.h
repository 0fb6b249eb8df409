// HB_CHECK(condition, "format", values...): a broken invariant of ours. Prints file:line, the
// condition and the values, then aborts. Bad input never ends here: it returns an Error (result.h).
#pragma once

#include <fmt/format.h>

#include <string>

namespace halfbyte::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& values);
}  // namespace halfbyte::internal

#define HB_CHECK(condition, ...)                                                                   \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::halfbyte::internal::CheckFailed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)
