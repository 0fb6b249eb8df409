// Measures what flows into the two stages of a layer while it runs over a sample (moe-layer.md §7:
// calibration). From it come static activation scales and the judgement of those that a checkpoint
// has. Run the layer in kRef or kW4a16: in kW4a4 `down` would see what gate_up's scale did.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "moe/moe_layer.h"
#include "moe/moe_observer.h"
#include "numerics/global_scale.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {

// What went into one stage, in blocks of 16. gate_up: the rows of tokens that have an expert; of
// several ranks, the one that owns the token's first expert counts them. down: the rows of the own
// experts. So the sum over ranks is what one rank with all experts measures.
struct StageMeasurement {
  static constexpr int kBinades = 256;

  int64_t rows = 0;
  int64_t blocks = 0;
  int64_t non_finite = 0;  // elements that are NaN or infinite; the rest does not count them
  float amax = 0;
  // Blocks by the exponent of their amax: [b] in [2^(b - 127), 2^(b - 126)), [0] below 2^-126.
  std::array<int64_t, kBinades> binades{};
  // What a quantizer under the checkpoint's scale would count; `blocks` 0 if it has none.
  Nvfp4BlockStats under_checkpoint;

  void AddRow(const float* row, int64_t columns, const std::optional<GlobalScale>& checkpoint);
  // The same stage of another rank.
  StageMeasurement& operator+=(const StageMeasurement& other);

  // At least `share` of the blocks have an amax below it: the upper edge of a binade. 0: no blocks.
  double BlockAmaxPercentile(double share) const;
  // amax / 2688, no headroom. Errors: no row; nothing but zeros; values that are not finite.
  // `name` is whose stage it is ("layer 3, down").
  Result<GlobalScale> Scale(std::string_view name) const;
};

// One scale per stage, or none.
struct StageScales {
  std::optional<GlobalScale> gate_up;
  std::optional<GlobalScale> down;
};

struct LayerMeasurement {
  StageMeasurement gate_up;
  StageMeasurement down;
  std::vector<int64_t> rows_of_expert;  // by global id
  // Rows of h beyond what the clamp allows, limit^2 * routing weight: a missing clamp (R78).
  int64_t rows_beyond_clamp = 0;

  LayerMeasurement& operator+=(const LayerMeasurement& other);
  int64_t experts_without_rows() const;
};

class ActivationRecorder : public MoeObserver {
 public:
  // `checkpoint`: the scales to be judged, headroom included.
  ActivationRecorder(const MoeLayer& layer, const StageScales& checkpoint);

  void OnGateUpInput(const Sample& sample) override;
  void OnDownInput(const Sample& sample) override;

  const LayerMeasurement& measurement() const { return measurement_; }

 private:
  const MoeLayer& layer_;
  StageScales checkpoint_;
  LayerMeasurement measurement_;
};

}  // namespace halfbyte
