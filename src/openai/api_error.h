// What a client is told when something is wrong (server.md §2.3):
//   {"error":{"message":...,"type":...,"param":...,"code":...}}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "engine/engine.h"
#include "engine/output.h"

namespace halfbyte {

struct ApiError {
  int status = 400;
  std::string code;                 // "invalid_value", "queue_full", ...
  std::string message;              // what came, what is allowed, how to fix it
  std::string param;                // JSON path, "messages[2].content[0].type"; empty: null
  int64_t retry_after_seconds = 0;  // above 0: goes into Retry-After

  // authentication_error, rate_limit_error, server_error or invalid_request_error.
  std::string_view type() const;
  // The body, one line of valid UTF-8.
  std::string Json() const;

  bool operator==(const ApiError&) const = default;
};

// 400: `param` does not hold what it may.
ApiError FieldError(std::string_view code, std::string param, std::string message);

template <class T>
using ApiResult = tl::expected<T, ApiError>;

// Why the engine did not take a request: `overload_status` for a full queue, 503 when it drains or
// is dead, else 400. The fields of Request are named as the body names them.
ApiError ErrorOf(const Refusal& refusal, int overload_status = 429);

// How a text ended, if that is an error: nonfinite_logits and engine_dead, timeouts, draining.
// None for stop and length.
std::optional<ApiError> ErrorOf(const Finish& finish);

}  // namespace halfbyte
