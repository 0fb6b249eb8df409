#include "capi/last_error.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace halfbyte {
namespace {

// Memory of the thread itself, so that lack of memory can be reported too.
constinit thread_local std::array<char, 4096> last_error{};

}  // namespace

int Fail(int code, std::string_view text) {
  const size_t length = std::min(text.size(), last_error.size() - 1);
  std::memcpy(last_error.data(), text.data(), length);
  last_error[length] = '\0';
  return code;
}

const char* LastError() { return last_error.data(); }

}  // namespace halfbyte
