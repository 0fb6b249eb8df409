#include "openai/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "openai/field_table.h"
#include "openai/json_text.h"

namespace halfbyte {
namespace {

// Never drawn in a chat, whether or not the tokenizer calls them special as it does others
// (server.md §3.5): what opens turns, a second <think>, and, as there are no tools, the mark of
// their blocks.
constexpr std::string_view kMasked[] = {
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<think>",
    "｜DSML｜",
};

// kMasked and all special tokens but those that end something.
std::vector<int32_t> ChatMasks(const ModelInfo& model, std::optional<int32_t> think_end) {
  std::set<int32_t> masked;
  for (const std::string_view token : kMasked) {
    if (const auto id = model.tokenizer->IdOf(token)) masked.insert(*id);
  }
  for (int32_t id = 0; id < model.tokenizer->vocab_size(); ++id) {
    const bool ends =
        id == think_end || std::ranges::find(model.eos_ids, id) != model.eos_ids.end();
    if (model.tokenizer->IsSpecial(id) && !ends) masked.insert(id);
  }
  return {masked.begin(), masked.end()};
}

std::string ModelObject(const ModelInfo& model, std::string_view name) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? std::string("null") : JsonString(text);
  };
  const std::string length =
      model.max_model_len > 0 ? fmt::to_string(model.max_model_len) : std::string("null");
  return fmt::format(
      R"({{"id":{},"object":"model","created":{},"owned_by":"halfbyte","max_model_len":{},)"
      R"("halfbyte":{{"precision":{},"kv_cache_dtype":{},"thinking":{}}}}})",
      JsonString(name), model.created, length, text_or_null(model.precision),
      text_or_null(model.kv_cache_dtype), model.chat.thinking);
}

}  // namespace

std::string ModelsBody(const ModelInfo& model) {
  std::string out = R"({"object":"list","data":[)";
  for (const std::string& name : model.served_names) {
    if (&name != &model.served_names.front()) out += ',';
    out += ModelObject(model, name);
  }
  return out + "]}";
}

ApiResult<std::string> ModelBody(const ModelInfo& model, std::string_view id) {
  if (std::ranges::find(model.served_names, id) != model.served_names.end()) {
    return ModelObject(model, id);
  }
  return tl::unexpected(ModelNotFound(model, id));
}

ApiError ModelNotFound(const ModelInfo& model, std::string_view id) {
  return {.status = 404,
          .code = "model_not_found",
          .message = fmt::format("model \"{}\" is not served here; there is \"{}\"",
                                 id.substr(0, 200), fmt::join(model.served_names, "\", \"")),
          .param = "model"};
}

OpenAiApi::OpenAiApi(ModelInfo model, ApiOptions options)
    : model_(std::move(model)),
      options_(std::move(options)),
      fields_(std::make_unique<FieldTable>(options_)) {
  HB_CHECK(model_.tokenizer != nullptr && !model_.served_names.empty(), "the model is not loaded");
  if (const auto id = model_.tokenizer->IdOf("</think>")) think_end_ = *id;
  chat_masks_ = ChatMasks(model_, think_end_);
}

OpenAiApi::~OpenAiApi() = default;

}  // namespace halfbyte
