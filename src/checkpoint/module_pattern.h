// Entries of ignore and exclude_modules lists: which modules of a checkpoint they mean.
//   "re:EXPRESSION" matches from the beginning of the name;
//   anything else is a glob (* and ?) for the name or for one of its parents, so "model.layers.1"
//   covers "model.layers.1.mlp.gate" but not "model.layers.10.mlp.gate".
// An expression that is none covers nothing.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace halfbyte {

class ModulePattern {
 public:
  explicit ModulePattern(std::string_view text);
  ~ModulePattern();
  ModulePattern(const ModulePattern&) = delete;
  ModulePattern& operator=(const ModulePattern&) = delete;

  const std::string& text() const { return text_; }
  bool broken() const;  // an expression that is none
  bool exact() const;   // the name of one module or parent
  bool Covers(std::string_view module) const;

 private:
  struct Regex;
  std::string text_;
  bool is_regex_ = false;
  std::unique_ptr<Regex> regex_;  // null where broken
};

}  // namespace halfbyte
