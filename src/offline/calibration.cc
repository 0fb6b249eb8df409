#include "offline/calibration.h"

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "comm/communicator.h"

namespace halfbyte {
namespace {

// One recorder at each layer, for as long as this lives.
class Recorders {
 public:
  Recorders(CpuModel& model, const std::vector<StageScales>& checkpoint) : model_(model) {
    for (size_t l = 0; l < checkpoint.size(); ++l) {
      MoeLayer& layer = model.moe(static_cast<int64_t>(l)).routed();
      recorders_.push_back(std::make_unique<ActivationRecorder>(layer, checkpoint[l]));
      layer.set_observer(recorders_.back().get());
    }
  }
  ~Recorders() {
    for (size_t l = 0; l < recorders_.size(); ++l) {
      model_.moe(static_cast<int64_t>(l)).routed().set_observer(nullptr);
    }
  }
  Recorders(const Recorders&) = delete;
  Recorders& operator=(const Recorders&) = delete;

  std::vector<LayerMeasurement> Measurements() const {
    std::vector<LayerMeasurement> all;
    for (const auto& recorder : recorders_) all.push_back(recorder->measurement());
    return all;
  }

 private:
  CpuModel& model_;
  std::vector<std::unique_ptr<ActivationRecorder>> recorders_;
};

// The sum over ranks, each of which measured what its experts have seen.
Result<LayerMeasurement> SumOverRanks(const LayerMeasurement& mine, Communicator& ranks) {
  struct Part {
    StageMeasurement gate_up, down;
    int64_t rows_beyond_clamp;
  };
  const Part part{mine.gate_up, mine.down, mine.rows_beyond_clamp};
  HB_ASSIGN_OR_RETURN(const auto parts, ranks.Collect(std::span(&part, 1)));
  const std::span<const int64_t> my_rows = mine.rows_of_expert;
  HB_ASSIGN_OR_RETURN(const auto rows, ranks.Collect(my_rows));
  LayerMeasurement sum;
  sum.rows_of_expert.resize(my_rows.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    const auto first = rows.begin() + static_cast<int64_t>(r * my_rows.size());
    sum += {parts[r].gate_up,
            parts[r].down,
            {first, first + std::ssize(my_rows)},
            parts[r].rows_beyond_clamp};
  }
  return sum;
}

Status RunSequence(Transformer& model, std::span<const int32_t> tokens,
                   const std::function<void(int64_t tokens)>& progress) {
  const int64_t total = std::ssize(tokens);
  HB_ASSIGN_OR_RETURN(const auto cache, model.NewCache({.context_tokens = total}));
  HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
  while (sequence.position() < total) {
    const int64_t first = sequence.position();
    const int64_t count = std::min(model.options().batch_tokens, total - first);
    const BatchItem item{&sequence,
                         tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                         LogitsWanted::kNone};
    HB_ASSIGN_OR_RETURN(const auto logits, model.Forward(*cache, {&item, 1}));
    HB_CHECK(logits.rows == 0, "{} rows of logits", logits.rows);
    progress(count);
  }
  return {};
}

}  // namespace

Result<ActivationMeasurement> MeasureActivations(
    Transformer& model, std::span<const std::vector<int32_t>> sequences, int headroom,
    const std::function<void(int64_t tokens)>& progress) {
  if (model.cpu() == nullptr) {
    return MakeError("activations are measured on the CPU: load the model there");
  }
  HB_CHECK(model.options().arithmetic != Arithmetic::kW4a4, "activations are quantized already");
  ActivationMeasurement result{.shape = MoeShapeOf(model.config()), .headroom = headroom};
  const ActivationScalePolicy policy{.headroom = headroom};
  for (int64_t l = 0; l < result.shape.layers; ++l) {
    HB_ASSIGN_OR_RETURN(const StageScales scales,
                        policy.Resolve(l, result.shape, model.cpu()->moe(l).input_scales()));
    result.checkpoint.push_back(scales);
  }
  const Recorders recorders(*model.cpu(), result.checkpoint);
  for (const std::vector<int32_t>& tokens : sequences) {
    if (tokens.empty()) continue;
    HB_RETURN_IF_ERROR(RunSequence(model, tokens, progress));
    result.tokens += std::ssize(tokens);
    result.context = std::max(result.context, std::ssize(tokens));
  }
  if (result.tokens == 0) return MakeError("nothing to measure: the text has no token");
  result.layers = recorders.Measurements();
  if (Communicator* const ranks = model.options().communicator) {
    for (LayerMeasurement& layer : result.layers) {
      HB_ASSIGN_OR_RETURN(layer, SumOverRanks(layer, *ranks));
    }
  }
  return result;
}

}  // namespace halfbyte
