// The parameters of one hyper-connection site, read from a checkpoint.
#pragma once

#include <vector>

#include "kernels/hyper_connection/hyper_connection.h"
#include "model/weight_loader.h"

namespace halfbyte {

class HyperConnectionWeights {
 public:
  HyperConnectionWeights() = default;

  // rows: (2+n)n for a site (with 3 scales), n for the head (with 1).
  static Result<HyperConnectionWeights> Load(const WeightLoader& loader, const ModuleKey& fn,
                                             const ModuleKey& base, const ModuleKey& scale,
                                             int64_t rows, int64_t scales) {
    const ModelConfig& config = loader.config();
    HyperConnectionWeights weights;
    HB_ASSIGN_OR_RETURN(weights.fn_,
                        loader.Matrix(fn, rows, config.hc_streams * config.hidden_size));
    HB_ASSIGN_OR_RETURN(weights.base_, loader.Vector(base, rows));
    HB_ASSIGN_OR_RETURN(weights.scale_, loader.Vector(scale, scales));
    weights.streams_ = static_cast<int>(config.hc_streams);
    weights.iterations_ = static_cast<int>(config.hc_sinkhorn_iterations);
    weights.eps_ = static_cast<float>(config.hc_eps);
    weights.norm_eps_ = static_cast<float>(config.rms_norm_eps);
    return weights;
  }

  HyperConnection view() const {
    return {fn_, base_.data(), scale_.data(), streams_, iterations_, eps_, norm_eps_};
  }

 private:
  WeightMatrix fn_;
  std::vector<float> base_;
  std::vector<float> scale_;
  int streams_ = 0;
  int iterations_ = 0;
  float eps_ = 0;
  float norm_eps_ = 0;
};

}  // namespace halfbyte
