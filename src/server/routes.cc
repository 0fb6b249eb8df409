#include "server/routes.h"

#include <algorithm>
#include <array>

namespace halfbyte {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";

constexpr RouteRule Open(RouteId id, std::string_view pattern) {
  return {.id = id, .pattern = pattern, .open = true};
}
constexpr RouteRule Reads(RouteId id, std::string_view pattern) {
  return {.id = id, .pattern = pattern};
}
constexpr RouteRule Asks(RouteId id, std::string_view pattern) {
  return {.id = id, .pattern = pattern, .posts = true, .needs_model = true};
}
constexpr RouteRule Generates(RouteId id, std::string_view pattern) {
  return {.id = id, .pattern = pattern, .posts = true, .generates = true, .needs_model = true};
}

constexpr RouteRule kRules[] = {
    Open(RouteId::kLive, "/live"),
    Open(RouteId::kReady, "/ready"),
    Open(RouteId::kReady, "/health"),
    Reads(RouteId::kModels, "/v1/models"),
    Generates(RouteId::kCompletions, "/v1/completions"),
    Generates(RouteId::kChat, "/v1/chat/completions"),
    Asks(RouteId::kTokenize, "/tokenize"),
    Asks(RouteId::kDetokenize, "/detokenize"),
    Asks(RouteId::kRender, "/render"),
    Asks(RouteId::kRender, "/v1/chat/completions/render"),
    Asks(RouteId::kRender, "/v1/completions/render"),
    {.id = RouteId::kTokenizerInfo, .pattern = "/tokenizer_info", .needs_model = true},
    Reads(RouteId::kMetrics, "/metrics"),
    Reads(RouteId::kVersion, "/version"),
    Reads(RouteId::kOpenApi, "/openapi.json"),
    Reads(RouteId::kPage, "/"),
};
constexpr RouteRule kModelRule = Reads(RouteId::kModel, "/v1/models/{id}");

}  // namespace

std::optional<RouteMatch> FindRoute(std::string_view path) {
  const auto rule = std::ranges::find(kRules, path, &RouteRule::pattern);
  if (rule != std::end(kRules)) return RouteMatch{rule, {}};
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    return RouteMatch{&kModelRule, path.substr(kModelPrefix.size())};
  }
  return std::nullopt;
}

std::string_view KnownMethod(std::string_view method) {
  constexpr std::array<std::string_view, 7> kMethods = {"GET",    "HEAD",    "POST", "PUT",
                                                        "DELETE", "OPTIONS", "PATCH"};
  const auto known = std::ranges::find(kMethods, method);
  return known == kMethods.end() ? "other" : *known;
}

}  // namespace halfbyte
