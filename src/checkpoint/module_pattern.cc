#include "checkpoint/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

namespace halfbyte {
namespace {

constexpr std::string_view kRegexPrefix = "re:";

// Patterns come from files: one that would search for ages counts as no match.
constexpr uint32_t kRegexSteps = 100'000;

bool GlobMatches(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return std::all_of(glob.begin() + static_cast<std::ptrdiff_t>(g), glob.end(),
                     [](char c) { return c == '*'; });
}

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct ModulePattern::Regex {
  struct Free {
    void operator()(pcre2_code* freed) const { pcre2_code_free(freed); }
    void operator()(pcre2_match_data* freed) const { pcre2_match_data_free(freed); }
    void operator()(pcre2_match_context* freed) const { pcre2_match_context_free(freed); }
  };
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_data, Free> match;
  std::unique_ptr<pcre2_match_context, Free> context;
};

ModulePattern::ModulePattern(std::string_view text)
    : text_(text), is_regex_(text.starts_with(kRegexPrefix)) {
  if (!is_regex_) return;
  text.remove_prefix(kRegexPrefix.size());
  int error = 0;
  size_t offset = 0;
  std::unique_ptr<pcre2_code, Regex::Free> code(
      pcre2_compile(Units(text), text.size(), PCRE2_ANCHORED, &error, &offset, nullptr));
  if (!code) return;
  regex_ = std::make_unique<Regex>();
  regex_->match.reset(pcre2_match_data_create_from_pattern(code.get(), nullptr));
  regex_->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(regex_->context.get(), kRegexSteps);
  regex_->code = std::move(code);
}

ModulePattern::~ModulePattern() = default;

bool ModulePattern::broken() const { return is_regex_ && !regex_; }

bool ModulePattern::exact() const {
  return !is_regex_ && text_.find_first_of("*?") == std::string::npos;
}

bool ModulePattern::Covers(std::string_view module) const {
  if (is_regex_) {
    return regex_ && pcre2_match(regex_->code.get(), Units(module), module.size(), 0, 0,
                                 regex_->match.get(), regex_->context.get()) >= 0;
  }
  for (size_t end = module.find('.');; end = module.find('.', end + 1)) {
    if (GlobMatches(text_, module.substr(0, end))) return true;
    if (end == std::string_view::npos) return false;
  }
}

}  // namespace halfbyte
