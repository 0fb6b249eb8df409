// A model's weights as the CPU keeps them.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "model/cpu/moe_block.h"
#include "model/cpu/projection.h"
#include "model/load_routed_layer.h"
#include "model/program/model_ops.h"
#include "model/weight_source.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

// Matrices that are read where they are stored, a row or a block at a time: the embedding and those
// of the hyper-connections.
bool IsReadInPlace(Module module);

struct CpuWeightOptions {
  bool packed = true;  // matrices are rearranged for bf16 activations; else used as they are stored
  RoutedLayerOptions experts;
};

class CpuWeights {
 public:
  // Everything that RequiredModules names, by the threads of the pool; of routed experts those of
  // the placement. The source must outlive the weights. on_part(layer) is told when a layer is
  // loaded, and, with -1, when what belongs to none is. Errors name the tensor.
  static Result<CpuWeights> Load(const WeightSource& source, const CpuWeightOptions& options,
                                 const ExpertPlacement& placement, ThreadPool& pool,
                                 const std::function<void(int64_t layer)>& on_part);

  const Projection& matrix(const ModuleKey& key) const;
  const WeightMatrix& in_place(const ModuleKey& key) const;
  const float* vector(const ModuleKey& key) const;
  HyperConnection hyper_connection(const HyperConnectionKeys& keys) const;

  const MoeBlock& moe(int64_t layer) const { return moe_[static_cast<size_t>(layer)]; }
  MoeBlock& moe(int64_t layer) { return moe_[static_cast<size_t>(layer)]; }

 private:
  CpuWeights() = default;
  Status Add(const WeightSource& source, const ModuleKey& key, ThreadPool* packing_pool);

  const ModelConfig* config_ = nullptr;
  std::unordered_map<ModuleKey, Projection> matrices_;
  std::unordered_map<ModuleKey, WeightMatrix> in_place_;
  std::unordered_map<ModuleKey, std::vector<float>> vectors_;
  std::vector<MoeBlock> moe_;
};

}  // namespace halfbyte
