#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <new>
#include <string>

#include "base/check.h"
#include "text/regex_syntax.h"

namespace halfbyte {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
// Steps that one match may take: a constant, and some for each byte of the subject, since giving
// back a long run costs a step per character. Real tokenizers stay far below; runaway backtracking
// does not.
constexpr uint64_t kMatchSteps = 200'000;
constexpr uint64_t kMatchStepsPerByte = 16;
constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 8 << 20;
constexpr uint32_t kHeapLimitKib = 64 << 10;  // for the interpreter, where there is no JIT

PCRE2_SPTR Units(std::string_view text) {
  // An empty view may have no address, which PCRE2 refuses.
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

std::string Message(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)) {
  if (data_ == nullptr || context_ == nullptr) {
    Free();
    throw std::bad_alloc();
  }
  pcre2_set_heap_limit(context_, kHeapLimitKib);
  // Without JIT support in PCRE2 there is no stack, and the interpreter runs.
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexScratch::~RegexScratch() { Free(); }

void RegexScratch::Free() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Result<Regex> Regex::CompileNative(std::string_view pattern, unsigned options) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context, 64);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(Units(pattern), pattern.size(), options | PCRE2_UTF, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) return MakeError("does not compile: {}", Message(error));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // on failure pcre2_match interprets
  return Regex(code);
}

Result<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return MakeError("is {} bytes long; the limit is {}", pattern.size(), kMaxPatternBytes);
  }
  HB_ASSIGN_OR_RETURN(const std::string native, TranslateRegex(pattern));
  return CompileNative(native, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

Result<Regex> Regex::Literal(std::string_view text) {
  HB_CHECK(!text.empty(), "an empty literal matches everywhere");
  if (text.size() > kMaxPatternBytes) {
    return MakeError("is {} bytes long; the limit is {}", text.size(), kMaxPatternBytes);
  }
  return CompileNative(text, PCRE2_LITERAL);
}

Result<std::optional<RegexMatch>> Regex::Find(std::string_view subject, size_t from,
                                              RegexScratch* scratch) const {
  const uint64_t limit = kMatchSteps + kMatchStepsPerByte * subject.size();
  pcre2_set_match_limit(scratch->context_,
                        static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));
  const int count = pcre2_match(code_.get(), Units(subject), subject.size(), from,
                                PCRE2_NO_UTF_CHECK, scratch->data_, scratch->context_);
  if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (count == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  if (count < 0) return MakeError("stops at byte {} of its input: {}", from, Message(count));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch->data_);
  HB_CHECK(from <= range[0] && range[0] <= range[1] && range[1] <= subject.size(), "match {}..{}",
           range[0], range[1]);
  return RegexMatch{range[0], range[1]};
}

}  // namespace halfbyte
