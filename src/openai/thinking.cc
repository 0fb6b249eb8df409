#include "openai/thinking.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

namespace halfbyte {
namespace {

// What the fields before said, with the paths that said it.
class Claims {
 public:
  void Switch(const std::string& path, std::optional<bool> on) {
    if (on) Claim(on_, path, *on, *on ? "on" : "off");
  }

  void Effort(const std::string& path, const std::optional<std::string>& word) {
    if (!word) return;
    const bool none = *word == "none";
    Claim(on_, path, !none, none ? "off" : "on");
    if (none) return;
    const ReasoningEffort effort = EffortOf(*word);
    if (!effort_) word_ = *word;
    Claim(effort_, path, effort, Name(effort));
  }

  // An object with both, under the names it uses.
  void Object(const BodyFields& body, std::string_view name, std::string_view effort,
              std::initializer_list<std::string_view> switches) {
    const BodyValue* value = body.Find(name);
    if (value == nullptr) return;
    const BodyFields fields(*value);
    for (const std::string_view each : switches) Switch(JoinPath(name, each), fields.Bool(each));
    Effort(JoinPath(name, effort), fields.String(effort));
  }

  ApiResult<ThinkingAsked> Resolve(const ModelDefaults& defaults) const {
    if (fault_) return tl::unexpected(*fault_);
    ThinkingAsked asked;
    asked.on = on_ ? on_->value : defaults.thinking;
    asked.effort = effort_ ? effort_->value : defaults.reasoning_effort;
    asked.effort_path = effort_ ? effort_->path : "";
    // In the first releases low is no other than high.
    const bool as_high = defaults.wording.efforts.profile == EffortProfile::kPreview &&
                         asked.effort == ReasoningEffort::kLow;
    asked.used = {.on = asked.on, .effort = as_high ? ReasoningEffort::kHigh : asked.effort};
    if (effort_) asked.used.requested = word_;
    return asked;
  }

 private:
  template <class T>
  struct Said {
    T value;
    std::string path;
    std::string word;
  };

  static ReasoningEffort EffortOf(std::string_view word) {
    if (word == "minimal" || word == "low") return ReasoningEffort::kLow;
    if (word == "max" || word == "ultra") return ReasoningEffort::kMax;
    return ReasoningEffort::kHigh;
  }

  template <class T>
  void Claim(std::optional<Said<T>>& said, const std::string& path, T value,
             std::string_view word) {
    if (!said) {
      said = {value, path, std::string(word)};
    } else if (said->value != value && !fault_) {
      fault_ = FieldError("invalid_value", path,
                          fmt::format("{} means {}, but {} means {}; keep one of them", path, word,
                                      said->path, said->word));
    }
  }

  std::optional<Said<bool>> on_;
  std::optional<Said<ReasoningEffort>> effort_;
  std::string word_;
  std::optional<ApiError> fault_;
};

}  // namespace

ApiResult<ThinkingAsked> ReadThinking(const BodyFields& body, const ModelDefaults& defaults) {
  Claims claims;
  if (const BodyValue* thinking = body.Find("thinking"); thinking != nullptr) {
    if (thinking->is_boolean()) {
      claims.Switch("thinking", thinking->get<bool>());
    } else {
      claims.Switch("thinking.type", BodyFields(*thinking).String("type") != "disabled");
    }
  }
  claims.Switch("think", body.Bool("think"));
  claims.Switch("enable_thinking", body.Bool("enable_thinking"));
  claims.Effort("reasoning_effort", body.String("reasoning_effort"));
  claims.Object(body, "reasoning", "effort", {"enabled"});
  claims.Object(body, "output_config", "effort", {});
  claims.Object(body, "chat_template_kwargs", "reasoning_effort", {"thinking", "enable_thinking"});
  return claims.Resolve(defaults);
}

std::string ThinkingUsed::Header() const {
  return on ? fmt::format("on; effort={}", Name(effort)) : "off";
}

}  // namespace halfbyte
