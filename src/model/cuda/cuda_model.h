// A model on a GPU. A step fills its tables on the host, and all else happens on the device, in one
// stream: the tables are copied, the program's operations run over them (cuda_ops.h), the logits
// are copied back. Steps of generation are captured as graphs, from the same code, for the sizes of
// decode_bucket.h; bits are those of the eager step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/result.h"
#include "device/context.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/pinned_buffer.h"
#include "model/cuda/cuda_kv_memory.h"
#include "model/cuda/cuda_ops.h"
#include "model/cuda/cuda_rope.h"
#include "model/cuda/cuda_step_memory.h"
#include "model/cuda/cuda_step_tables.h"
#include "model/cuda/cuda_weights.h"
#include "model/device_model.h"
#include "model/rope_tables.h"
#include "model/transformer_options.h"
#include "model/weight_source.h"

namespace halfbyte {

// Rows of logits that memory is kept for.
int64_t CudaLogitRows(const TransformerOptions& options);

class CudaModel : public DeviceModel {
 public:
  // As LoadCudaModel.
  static Result<std::unique_ptr<CudaModel>> Load(const WeightSource& source,
                                                 const TransformerOptions& options,
                                                 const Context& context,
                                                 const LoadListener& on_part);

  Result<std::unique_ptr<KvMemory>> NewMemory(const KvPoolSizes& sizes) const override;
  Result<MatrixView<const float>> Run(KvMemory& memory, std::span<const PlacedItem> batch,
                                      const Watchers& watchers) override;
  MoeCounters moe_counters(int64_t layer) const override;
  int64_t workspace_bytes() const override { return memory_.sizes().bytes(); }

  const CudaStepMemory& workspace() const { return memory_; }

 private:
  CudaModel(const ModelConfig& config, const TransformerOptions& options, const Context& context,
            CudaDevice device, CudaStream stream, CudaWeights weights, CudaStepMemory memory)
      : config_(config),
        options_(options),
        context_(context),
        device_(std::move(device)),
        stream_(std::move(stream)),
        rope_(config),
        weights_(std::move(weights)),
        memory_(std::move(memory)),
        ops_(config_, weights_, memory_, stream_.get()) {}

  int64_t logit_rows() const { return logits_.bytes() / RowBytes(); }
  int64_t RowBytes() const { return config_.vocab_size * int64_t{sizeof(float)}; }
  Result<std::shared_ptr<const CudaRope>> RopeOf(int64_t positions) const;
  Status RunProgram(const StepSizes& sizes, CudaKvMemory& memory, std::span<const PlacedItem> batch,
                    const Watchers& watchers);
  Status RunGraph(const StepSizes& sizes, CudaKvMemory& memory);

  const ModelConfig& config_;
  const TransformerOptions options_;
  const Context context_;
  const CudaDevice device_;
  const CudaStream stream_;
  const RopeTables rope_;
  const CudaWeights weights_;
  const CudaStepMemory memory_;
  CudaOps ops_;
  DeviceBuffer logits_;       // [logit_rows(), vocab]
  PinnedBuffer host_logits_;  // the same
  mutable std::shared_ptr<const CudaRope> longest_rope_;
};

}  // namespace halfbyte
