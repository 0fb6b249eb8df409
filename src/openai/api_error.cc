#include "openai/api_error.h"

#include <utility>

#include "openai/json_text.h"

namespace halfbyte {

std::string_view ApiError::type() const {
  if (code == "queue_full") return "rate_limit_error";
  if (status == 401) return "authentication_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string ApiError::Json() const {
  std::string out = R"({"error":{"message":)";
  AppendJsonString(out, message);
  out += R"(,"type":)";
  AppendJsonString(out, type());
  out += R"(,"param":)";
  if (param.empty()) {
    out += "null";
  } else {
    AppendJsonString(out, param);
  }
  out += R"(,"code":)";
  AppendJsonString(out, code);
  out += "}}";
  return out;
}

ApiError FieldError(std::string_view code, std::string param, std::string message) {
  return {.code = std::string(code), .message = std::move(message), .param = std::move(param)};
}

ApiError ErrorOf(const Refusal& refusal, int overload_status) {
  const auto error = [&](int status, std::string_view code) {
    return ApiError{.status = status,
                    .code = std::string(code),
                    .message = refusal.message,
                    .param = refusal.field,
                    .retry_after_seconds = refusal.retry_after_seconds};
  };
  switch (refusal.reason) {
    case RefusalReason::kQueueFull:
      return error(overload_status, "queue_full");
    case RefusalReason::kDraining:
      return error(503, "draining");
    case RefusalReason::kDead:
      return error(503, "engine_dead");
    case RefusalReason::kContextLength:
      return error(400, "context_length_exceeded");
    case RefusalReason::kInvalid:
      break;
  }
  return error(400, "invalid_value");
}

namespace {

ApiError ErrorOf(CancelCause cause) {
  switch (cause) {
    case CancelCause::kQueueTimeout:
      return {.status = 503,
              .code = "queue_timeout",
              .message = "the request waited too long for its turn; try again later",
              .retry_after_seconds = 1};
    case CancelCause::kRequestTimeout:
      return {.status = 504,
              .code = "request_timeout",
              .message = "the answer took longer than the server allows; ask for fewer tokens"};
    case CancelCause::kShutdown:
      return {.status = 503,
              .code = "draining",
              .message = "the server shuts down and could not finish the answer; try again",
              .retry_after_seconds = 1};
    case CancelCause::kSlowClient:
      return {.status = 500,
              .code = "slow_client",
              .message = "the answer was not read fast enough and has been given up"};
    case CancelCause::kClient:
    case CancelCause::kDisconnected:
      break;
  }
  return {.status = 500, .code = "cancelled", .message = "the request was cancelled"};
}

}  // namespace

std::optional<ApiError> ErrorOf(const Finish& finish) {
  switch (finish.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      return std::nullopt;
    case FinishReason::kAbort:
      return ErrorOf(finish.cancelled.value_or(CancelCause::kClient));
    case FinishReason::kError:
      break;
  }
  if (finish.error_code == "engine_dead") {  // why, the log says: it may name files
    return ApiError{.status = 503,
                    .code = finish.error_code,
                    .message =
                        "the engine has failed and the server ends; try again when it is "
                        "back"};
  }
  return ApiError{.status = 500, .code = finish.error_code, .message = finish.error_message};
}

}  // namespace halfbyte
