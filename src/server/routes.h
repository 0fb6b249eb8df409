// Which paths there are, and what each asks of a request (server.md §2.2).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace halfbyte {

enum class RouteId {
  kLive,
  kReady,
  kModels,
  kModel,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kRender,
  kTokenizerInfo,
  kMetrics,
  kVersion,
  kOpenApi,
  kPage,
};

struct RouteRule {
  RouteId id;
  std::string_view pattern;  // for logs and metrics
  bool posts = false;        // POST with a JSON body; else GET or HEAD
  bool open = false;         // asks for no key
  bool generates = false;    // needs a model that is loaded and takes requests
  bool needs_model = false;  // needs a model that is loaded

  std::string_view allow() const { return posts ? "POST" : "GET, HEAD"; }
};

struct RouteMatch {
  const RouteRule* rule;
  std::string_view model_id;  // kModel: the rest of the path
};

// `path` without the server's --root-path.
std::optional<RouteMatch> FindRoute(std::string_view path);

// A method's name for metrics: "other" for what no route takes.
std::string_view KnownMethod(std::string_view method);

}  // namespace halfbyte
