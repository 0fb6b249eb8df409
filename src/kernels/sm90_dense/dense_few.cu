#include "kernels/sm90_dense/dense_configs.cuh"

namespace halfbyte::sm90 {
template struct DenseVariant<Dense8>;
template struct DenseVariant<Dense16>;
template struct DenseVariant<Dense32>;
}  // namespace halfbyte::sm90
