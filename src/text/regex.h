// One compiled regular expression: PCRE2 with JIT, over UTF-8, with Unicode properties.
// Immutable and shareable between threads; what a match writes lives in a RegexScratch.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace halfbyte {

struct RegexMatch {
  size_t begin;
  size_t end;
};

// Buffers for matching. One per thread at a time.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  void Free();
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

class Regex {
 public:
  // `pattern` in the Oniguruma dialect of tokenizer.json files (regex_syntax.h), valid UTF-8.
  // Errors: not valid, not supported, longer than 16 KiB.
  static Result<Regex> Compile(std::string_view pattern);
  // Matches exactly `text`, which must not be empty.
  static Result<Regex> Literal(std::string_view text);

  // The first match in `subject` that begins at `from` or later. The subject's ends are the ends of
  // the world: look-around sees nothing beyond. `subject` must be valid UTF-8 (not checked again).
  // Error: the match takes too many steps (a pattern that backtracks without end).
  Result<std::optional<RegexMatch>> Find(std::string_view subject, size_t from,
                                         RegexScratch* scratch) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}
  static Result<Regex> CompileNative(std::string_view pattern, unsigned options);

  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace halfbyte
