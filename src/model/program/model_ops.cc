#include "model/program/model_ops.h"

namespace halfbyte {

const char* NameOf(RowsName name) {
  static constexpr const char* kNames[] = {
      "streams",     "input",         "attention-out", "moe-out",     "window",
      "low-rank",    "queries",       "entry-kv",      "entry-score", "index-kv",
      "index-score", "index-queries", "index-weights", "selected",    "selected-count",
      "attended",    "grouped",       "router-logits", "choices",     "choice-weights",
      "head-input"};
  static_assert(std::size(kNames) == kRowsNames);
  return kNames[static_cast<size_t>(name)];
}

}  // namespace halfbyte
