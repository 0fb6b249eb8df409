// The weights of one expert as they are stored.
#pragma once

#include "tensor/weight_matrix.h"

namespace halfbyte {

// Views of checkpoint bytes.
struct ExpertWeights {
  WeightMatrix gate;  // [intermediate, hidden], w1
  WeightMatrix up;    // [intermediate, hidden], w3; its own global_scale
  WeightMatrix down;  // [hidden, intermediate], w2
};

}  // namespace halfbyte
