// The OpenAI interface as data (server.md §2.3 to §2.7): bodies in, requests and bodies out. No
// sockets, no threads, no clock.
//
//   const OpenAiApi api(model, options);
//   auto call = api.ParseChat(body);            // or an ApiError
//   Answer answer(api.model(), *call, "chatcmpl-" + id, now);
//   ... submit call->requests, hand events to the answer (answer.h) ...
//
// Everything here is const and may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "openai/api_error.h"
#include "openai/generation_call.h"
#include "text/generation_config.h"
#include "text/model_defaults.h"
#include "text/tokenizer.h"

namespace halfbyte {

// The model that is served. Before it is loaded only names and `created` are known.
struct ModelInfo {
  std::vector<std::string> served_names;  // at least one; the first is the default
  int64_t created = 0;                    // seconds since 1970
  const Tokenizer* tokenizer = nullptr;   // outlives all calls and answers
  int64_t max_model_len = 0;
  int64_t vocabulary = 0;  // ids that the model has: ExecutorLimits::vocabulary
  std::vector<int32_t> eos_ids;
  std::optional<std::string> chat_template;  // Jinja, if the checkpoint brings one; not used here
  GenerationDefaults defaults;               // of generation_config.json
  ModelDefaults chat;
  std::string system_fingerprint;  // "hb-" and 12 hex digits
  std::string precision;           // for /v1/models: "nvfp4"
  std::string kv_cache_dtype;      // "fp8"
};

struct ApiOptions {
  int64_t max_n = 16;
  int64_t max_logprobs = 20;
  bool reject_unknown_fields = false;  // --unknown-fields reject
  bool clamp_max_tokens = false;
  bool force_include_usage = false;
  ReasoningField reasoning_field = ReasoningField::kBoth;
  bool native_developer_role = false;
  bool allow_control_tokens_in_content = false;
  std::optional<uint64_t> seed;  // of requests without one; absent: drawn anew for each
};

// An answer that needs no engine.
struct JsonAnswer {
  std::string body;
  std::vector<std::string> ignored;  // as in GenerationCall
  std::optional<ThinkingUsed> thinking;
};

// GET /v1/models and /v1/models/{id}; also while the model loads (what is not known yet is null).
std::string ModelsBody(const ModelInfo& model);
ApiResult<std::string> ModelBody(const ModelInfo& model, std::string_view id);
ApiError ModelNotFound(const ModelInfo& model, std::string_view id);

class FieldTable;

class OpenAiApi {
 public:
  OpenAiApi(ModelInfo model, ApiOptions options);
  ~OpenAiApi();

  // Where a text is turned into ids, `stop` ends that soon, with an error that nobody waits for. A
  // text that cannot fit the context is refused by its bytes, before it is tokenized.
  ApiResult<GenerationCall> ParseCompletions(std::string_view body,
                                             std::stop_token stop = {}) const;
  ApiResult<GenerationCall> ParseChat(std::string_view body, std::stop_token stop = {}) const;

  // Of at most kMostContexts times as many tokens as the context has.
  ApiResult<JsonAnswer> Tokenize(std::string_view body, std::stop_token stop = {}) const;
  ApiResult<JsonAnswer> Detokenize(std::string_view body) const;
  static constexpr int64_t kMostContexts = 16;
  // Texts of the control tokens and the checkpoint's template, for clients that encode themselves.
  JsonAnswer TokenizerInfo() const;
  // Any body of the two generating routes, told apart by `messages`; nothing runs.
  ApiResult<JsonAnswer> Render(std::string_view body, std::stop_token stop = {}) const;

  const ModelInfo& model() const { return model_; }
  const ApiOptions& options() const { return options_; }

 private:
  // Of bodies that fit the table.
  ApiResult<void> ResolveCompletions(const nlohmann::json& body, const EncodeLimits& limits,
                                     GenerationCall& call) const;
  ApiResult<void> ResolveChat(const nlohmann::json& body, const EncodeLimits& limits,
                              GenerationCall& call) const;

  ModelInfo model_;
  ApiOptions options_;
  std::vector<int32_t> chat_masks_;
  std::optional<int32_t> think_end_;
  std::unique_ptr<const FieldTable> fields_;
};

// /openapi.json: OpenAPI 3.1 of every route of a server of these models, from the table that checks
// the bodies.
std::string OpenApiDocument(const ApiOptions& options, std::span<const std::string> served_names,
                            int overload_status = 429);

}  // namespace halfbyte
