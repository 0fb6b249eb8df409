#include "model/rope_tables.h"

#include <optional>

#include "kernels/rope/rope.h"

namespace halfbyte {
namespace {

std::vector<double> FrequenciesOf(const ModelConfig& config, AttentionKind kind) {
  const RopeConfig& rope = config.rope(kind);
  std::optional<Yarn> yarn;
  if (rope.yarn) {
    yarn = Yarn{rope.yarn->factor, static_cast<double>(rope.yarn->original_max_position),
                rope.yarn->beta_fast, rope.yarn->beta_slow};
  }
  return RopeFrequencies(rope.theta, config.rope_dim, yarn);
}

}  // namespace

RopeTables::RopeTables(const ModelConfig& config)
    : window(FrequenciesOf(config, AttentionKind::kWindow)),
      compressed(FrequenciesOf(config, AttentionKind::kC4)) {}

}  // namespace halfbyte
