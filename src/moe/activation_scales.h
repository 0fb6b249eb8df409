// Which static activation scales a layer runs with in kW4a4 (moe-layer.md §7), and the file that
// `halfbyte calibrate` writes them to (docs/calibrate.md describes it for users).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "moe/activation_recorder.h"
#include "moe/moe_layer.h"

namespace halfbyte {

// Of which model, to be compared when scales are used.
struct MoeModelShape {
  int64_t layers = 0;
  int64_t experts = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;

  friend bool operator==(const MoeModelShape&, const MoeModelShape&) = default;
};

// Measured scales, without headroom. A down scale belongs to the routing weight's placement under
// which it was taken, before `down`.
struct ActivationScales {
  struct Layer {
    GlobalScale gate_up{1.0f};
    GlobalScale down{1.0f};
  };

  std::filesystem::path path;  // for errors
  MoeModelShape shape;
  std::vector<Layer> layers;

  // Scales come back bit for bit. Errors name the file and the field: another version, a scale that
  // is not finite, positive and at most kLargestInputScale, another number of layers than stated.
  static Result<ActivationScales> Read(const std::filesystem::path& path);
};

// What a run over a text measured.
struct ActivationMeasurement {
  MoeModelShape shape;
  int64_t tokens = 0;
  int64_t context = 0;
  int headroom = kDefaultHeadroom;      // under which the checkpoint's scales were judged
  std::vector<StageScales> checkpoint;  // by layer, headroom included; none if it has none
  std::vector<LayerMeasurement> layers;

  // The file's content. Error: a stage of which no scale can be taken, a missing clamp.
  Result<Json> ToJson() const;
};

// Blocks that clip under the checkpoint's scale: more than the first share is worth a warning,
// more than the second makes the scale unusable (moe-layer.md §10).
inline constexpr double kClippedWarning = 0.001;
inline constexpr double kClippedFailure = 0.01;

struct ScaleFinding {
  bool failed = false;
  std::string text;  // one sentence
};
// Stages that clip under the checkpoint's scale, and how many experts saw no token.
std::vector<ScaleFinding> JudgeMeasurement(const ActivationMeasurement& measurement);

// The input scales of a layer's experts as the checkpoint has them.
struct ExpertInputScales {
  std::vector<float> gate_up;  // of each expert that has both, the larger of gate's and up's
  std::vector<float> down;
  std::string missing;  // the first expert and matrix without one ("expert 5, up"); empty: none
};

struct ActivationScalePolicy {
  enum class Source {
    kCheckpointIfComplete,  // else per token
    kCheckpoint,            // an expert without a scale is an error (R79)
    kPerToken,
    kMeasured,
  };

  Source source = Source::kCheckpointIfComplete;
  int headroom = kDefaultHeadroom;  // a power of two on top of checkpoint and measured scales
  std::shared_ptr<const ActivationScales> measured;  // kMeasured

  // The scales of one layer, the same for all experts and ranks. `shape` is the model's. Errors
  // name the layer: what the source lacks, scales of another model, headroom outside 0..6.
  Result<StageScales> Resolve(int64_t layer, const MoeModelShape& shape,
                              const ExpertInputScales& checkpoint) const;
  // The same for weights that are no layer of a checkpoint: `name` says whose they are. Error also:
  // kMeasured, for a file tells of a checkpoint's layers.
  Result<StageScales> ResolveUnmeasured(std::string_view name,
                                        const ExpertInputScales& weights) const;
};

}  // namespace halfbyte
