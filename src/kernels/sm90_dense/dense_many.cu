#include "kernels/sm90_dense/dense_configs.cuh"

namespace halfbyte::sm90 {
template struct DenseVariant<Dense64>;
template struct DenseVariant<Dense128>;
template struct DenseVariant<Dense160>;
}  // namespace halfbyte::sm90
