// The bodies that routes share.
#pragma once

#include <string>

#include "http/http.h"
#include "openai/api_error.h"

namespace halfbyte {

inline HttpResponse JsonResponse(int status, std::string body) {
  return {.head = {.status = status, .fields = {{"Content-Type", "application/json"}}},
          .body = std::move(body)};
}

inline HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response = JsonResponse(error.status, error.Json());
  if (error.retry_after_seconds > 0) {
    response.head.fields.Add("Retry-After", std::to_string(error.retry_after_seconds));
  }
  return response;
}

}  // namespace halfbyte
