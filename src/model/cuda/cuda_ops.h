// The operations of a model on a GPU, for one step after another: launches into one stream, over
// rows in one arena. Nothing here allocates, waits or reads the device, so a step can be captured;
// but Read waits, and so does everything if asked to.
//
// Rows that products and attention read or write are bf16 numbers; what is pooled, chosen from or
// summed later is fp32.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/compressor/compressor_cuda.h"
#include "model/cuda/cuda_kv_memory.h"
#include "model/cuda/cuda_rope.h"
#include "model/cuda/cuda_step_memory.h"
#include "model/cuda/cuda_step_tables.h"
#include "model/cuda/cuda_weights.h"
#include "model/program/model_ops.h"

namespace halfbyte {

class CudaOps : public ModelOps {
 public:
  // All must outlive it.
  CudaOps(const ModelConfig& config, const CudaWeights& weights, const CudaStepMemory& memory,
          cudaStream_t stream)
      : config_(config), weights_(weights), memory_(memory), stream_(stream) {}

  // What a step finds in device memory.
  struct Step {
    const CudaStepTables& tables;
    const StepShape& shape;  // bounds
    const CudaKvMemory& cache;
    const CudaRope& rope;
    float* logits = nullptr;  // out, [wanted tokens, vocab]
    bool wait = false;        // for the end of each operation, to time it
  };
  // Must be called before a step; all must outlive it.
  void Begin(const Step& step);
  // The first error of a launch since, which the operations after it have left out.
  Status status() const { return status_; }

  Rows Take(RowsName name, TokenSet tokens, int64_t columns) override;
  void Embed(const ModuleKey& table, Rows streams, Rounding rounding) override;
  void CrossBoundary(const Boundary& boundary) override;
  using ModelOps::Project;
  void Project(Rows x, std::span<const Product> products) override;
  void Store(const CacheRows& rows) override;
  void Select(const Selection& selection) override;
  void Attend(const Attention& attention) override;
  void Route(const Choice& choice) override;
  Status RunExperts(const Experts& experts) override;
  Rows KeepWanted(Rows all) override;
  void MergeStreams(Rows streams, Rows x, Rounding rounding) override;
  void Logits(Rows x, const ModuleKey& head) override;
  std::vector<float> Read(Rows rows) const override;

 private:
  void OpenScope() override { scopes_.push_back(used_); }
  void CloseScope() override {
    used_ = scopes_.back();
    scopes_.pop_back();
  }

  DeviceTokens tokens(Rows rows) const { return step_->tables.of(rows.tokens); }
  template <class T>
  T* Data(Rows rows) const {
    return reinterpret_cast<T*>(data_[static_cast<size_t>(rows.name)]);
  }
  std::byte* TakeBytes(int64_t bytes);
  template <class T>
  T* TakeElements(int64_t count) {
    return reinterpret_cast<T*>(TakeBytes(count * int64_t{sizeof(T)}));
  }
  // Launches unless something has failed: launch() -> cudaError_t.
  template <class Launch>
  void Do(const char* what, const Launch& launch);
  void Products(const Bf16* x, int64_t tokens, std::span<const sm90::DenseProduct> products);
  void Compress(const AttentionLayer& attention, const Compression& compression,
                CompressedRowKind kind, const DeviceRows& rows, const KvLayout::Ring& ring);
  void Keep(void* rows, int64_t row_bytes);
  float norm_eps() const { return static_cast<float>(config_.rms_norm_eps); }

  const ModelConfig& config_;
  const CudaWeights& weights_;
  const CudaStepMemory& memory_;
  const cudaStream_t stream_;

  // Of the step.
  const Step* step_ = nullptr;
  Status status_;
  int64_t used_ = 0;  // bytes of the arena
  std::vector<int64_t> scopes_;
  std::array<std::byte*, kRowsNames> data_ = {};
  float* post_ = nullptr;  // of CrossBoundary: what the way into the streams needs
  float* comb_ = nullptr;
};

}  // namespace halfbyte
