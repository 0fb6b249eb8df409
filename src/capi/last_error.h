// How a function of the C interface ends: with a code, and a text that its thread can ask for.
// Nothing is thrown across that interface.
#pragma once

#include <halfbyte/moe.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

// Keeps the text for LastError, cut to 4095 bytes, and returns the code.
int Fail(int code, std::string_view text);

// Of this thread; "" before the first failure.
const char* LastError();

// The code for an error of that kind.
constexpr int CodeOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kMemory:
      return HALFBYTE_MOE_OUT_OF_MEMORY;
    case ErrorKind::kDevice:
      return HALFBYTE_MOE_DEVICE_FAILED;
    case ErrorKind::kInput:
      break;
  }
  return HALFBYTE_MOE_BAD_INPUT;
}

// body() returns Result<int>: a code, or an error.
template <class Body>
int Guarded(const Body& body) {
  try {
    const Result<int> code = body();
    return code ? *code : Fail(CodeOf(code.error().kind), code.error().message);
  } catch (const std::bad_alloc&) {
    return Fail(HALFBYTE_MOE_OUT_OF_MEMORY, "not enough memory");
  } catch (const std::length_error&) {
    return Fail(HALFBYTE_MOE_OUT_OF_MEMORY, "not enough memory: more than a process can address");
  } catch (const std::exception& e) {
    return Fail(HALFBYTE_MOE_INTERNAL, e.what());
  } catch (...) {
    return Fail(HALFBYTE_MOE_INTERNAL, "unknown exception");
  }
}

}  // namespace halfbyte
