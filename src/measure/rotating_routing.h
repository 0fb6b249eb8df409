// Routings that wander through all experts: in a fixed random order, each token takes the next
// top_k of the cycle, and the next step goes on where the last one ended. So the experts of a step
// are the ones that have rested longest, all are used equally often, and a step of up to
// `experts` slots touches no expert twice.
#pragma once

#include <cstdint>
#include <vector>

#include "measure/moe_shape.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

class RotatingRouting {
 public:
  explicit RotatingRouting(const MoeShape& shape, uint32_t seed = 1);

  // The next `count` experts of the cycle.
  std::vector<int32_t> Take(int64_t count);

  // logits [tokens, experts] from which every router chooses the next top_k experts for each token,
  // by falling score in cycle order.
  void TakeLogits(MatrixView<float> logits);

 private:
  int64_t top_k_;
  std::vector<int32_t> cycle_;
  size_t next_ = 0;
};

}  // namespace halfbyte
