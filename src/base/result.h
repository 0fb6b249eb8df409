// Errors as values: bad input becomes an Error with one sentence that names the file, tensor, field
// or flag and the remedy. Broken invariants do not come here; see check.h.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace halfbyte {

// Whose fault it is, for callers that answer with a code.
enum class ErrorKind : uint8_t {
  kInput,   // what was given: a file, a flag, an argument, a request
  kMemory,  // more memory is needed than there is, on the machine or on a GPU
  kDevice,  // a GPU failed, in this call or in work that was begun before it
};

struct Error {
  std::string message;  // one sentence, without a trailing newline
  ErrorKind kind = ErrorKind::kInput;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// return MakeError("{}: header length {} is beyond the file's {} bytes", path, length, size);
template <class... Args>
tl::unexpected<Error> MakeError(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{fmt::format(format, std::forward<Args>(args)...)});
}
template <class... Args>
tl::unexpected<Error> MakeError(ErrorKind kind, fmt::format_string<Args...> format,
                                Args&&... args) {
  return tl::unexpected<Error>(Error{fmt::format(format, std::forward<Args>(args)...), kind});
}

}  // namespace halfbyte

#define HB_CONCAT_INNER(a, b) a##b
#define HB_CONCAT(a, b) HB_CONCAT_INNER(a, b)

// HB_RETURN_IF_ERROR(Check(x)); leaves the function with the error, if there is one.
#define HB_RETURN_IF_ERROR(expression)                                        \
  do {                                                                        \
    if (auto hb_status = (expression); !hb_status)                            \
      return tl::unexpected<::halfbyte::Error>(std::move(hb_status.error())); \
  } while (false)

// HB_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
#define HB_ASSIGN_OR_RETURN(declaration, expression) \
  HB_ASSIGN_OR_RETURN_INNER(HB_CONCAT(hb_result_, __LINE__), declaration, expression)
#define HB_ASSIGN_OR_RETURN_INNER(result, declaration, expression)                  \
  auto result = (expression);                                                       \
  if (!result) return tl::unexpected<::halfbyte::Error>(std::move(result.error())); \
  declaration = *std::move(result)
