// A model's weights in GPU memory, as kernels take them: the twin of model/cpu/cpu_weights.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/device_buffer.h"
#include "kernels/hyper_connection/hyper_connection_cuda.h"
#include "kernels/route/router_params.h"
#include "kernels/sm90_dense/sm90_dense.h"
#include "kernels/swiglu/swiglu.h"
#include "model/device_model.h"
#include "model/program/model_ops.h"
#include "model/transformer_options.h"
#include "model/weight_source.h"
#include "moe/cuda/cuda_moe_call.h"
#include "moe/cuda/cuda_moe_layer.h"

namespace halfbyte {

// The feed-forward half of a layer, but for the router's product.
struct CudaMoeBlock {
  CudaMoeLayer routed;
  sm90::DenseWeight shared_gate, shared_up, shared_down;
  SwigluParams swiglu;  // of both
  RouterParams router;
  const float* router_bias = nullptr;     // [experts] of learned routing, or null
  const int32_t* router_table = nullptr;  // [vocab, top_k] of hash routing, or null
  CudaMoeCounters* counters = nullptr;    // kW4a4 only
};

class CudaWeights {
 public:
  // Everything that RequiredModules names, one matrix or expert after the other, on the current
  // device. The source must outlive the weights. Errors name the tensor: a format that no kernel
  // computes from, an FP8 scale without an exact form; GPU memory, with the numbers.
  static Result<CudaWeights> Load(const WeightSource& source, const CudaDevice& device,
                                  const TransformerOptions& options, const LoadListener& on_part);

  // Of a matrix, but for routed experts. Error: a format that no kernel computes from.
  static Result<int64_t> BytesOf(const ModelConfig& config, const ModuleKey& key,
                                 const StoredWeight& unread);

  const sm90::DenseWeight& matrix(const ModuleKey& key) const;
  const Bf16* embedding(const ModuleKey& key) const;  // [vocab, hidden]
  const float* vector(const ModuleKey& key) const;
  DeviceHyperConnection hyper_connection(const HyperConnectionKeys& keys) const;
  const CudaMoeBlock& moe(int64_t layer) const { return moe_[static_cast<size_t>(layer)]; }

  int64_t device_bytes() const { return device_bytes_; }

 private:
  CudaWeights() = default;
  Status Add(const WeightSource& source, const ModuleKey& key);
  Status AddMatrix(const StoredWeight& stored, const ModuleKey& key);
  Status AddMoe(const WeightSource& source, const CudaDevice& device,
                const TransformerOptions& options, int64_t layer);
  template <class T>
  Result<const T*> Keep(const std::vector<T>& values, std::string_view what);

  const ModelConfig* config_ = nullptr;
  std::unordered_map<ModuleKey, sm90::DenseWeight> matrices_;
  std::unordered_map<ModuleKey, const Bf16*> embeddings_;
  std::unordered_map<ModuleKey, const float*> vectors_;  // and those of hyper-connections
  std::vector<CudaMoeBlock> moe_;
  std::vector<DeviceBuffer> memory_;
  int64_t device_bytes_ = 0;
};

}  // namespace halfbyte
