// The fields of every route's body: the one table behind validation and /openapi.json (server.md
// §2.4).
#pragma once

#include <string>
#include <vector>

#include "openai/api.h"
#include "openai/field_rule.h"

namespace halfbyte {

class FieldTable {
 public:
  explicit FieldTable(const ApiOptions& options);

  const Rule& completions() const { return completions_; }
  const Rule& chat() const { return chat_; }
  const Rule& tokenize_text() const { return tokenize_text_; }
  const Rule& tokenize_chat() const { return tokenize_chat_; }
  const Rule& detokenize() const { return detokenize_; }

 private:
  Rule completions_;
  Rule chat_;
  Rule tokenize_text_;
  Rule tokenize_chat_;
  Rule detokenize_;
};

// The body as an object that fits the rule; the names that no API defines go to `ignored`, or are
// an error if the options say so.
ApiResult<BodyValue> ParseChecked(std::string_view body, const Rule& rule,
                                  const ApiOptions& options, std::vector<std::string>& ignored);

// The same of a body that is parsed already. Afterwards what came under an alias stands under the
// field's own name; both with different values are an error.
ApiResult<void> CheckBody(BodyValue& body, const Rule& rule, const ApiOptions& options,
                          std::vector<std::string>& ignored);

}  // namespace halfbyte
