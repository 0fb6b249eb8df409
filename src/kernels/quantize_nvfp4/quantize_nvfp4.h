// Matrices to NVFP4 and back: rows of fp32, bf16 or fp16 become E2M1 codes and linear E4M3 block
// scales along the row (K), under a global scale that is given, taken from the matrix, or taken
// from each row. Rule: nvfp4.md §3.2 and moe-layer.md §4, one block at a time in
// numerics/nvfp4_block.h; every variant (instruction set, number of threads) writes the same bytes
// as that reference.
//
// Rows are independent: a row's bytes depend on that row and the global scale only. NaN is encoded
// as 0, infinity as the largest number of its block; both are counted, so a caller can refuse.
// Parallel over rows through the context's pool: do not call from inside another loop on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "device/context.h"
#include "numerics/bf16.h"
#include "numerics/global_scale.h"
#include "numerics/nvfp4_block.h"
#include "tensor/dtype.h"
#include "tensor/nvfp4_matrix.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// A [rows, k] matrix of floats that somebody else owns; any address, any distance between rows.
struct FloatRows {
  DType dtype = DType::kF32;  // kF32, kBf16 or kF16
  int64_t rows = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;  // from the start of one row to the next; k elements lie dense in a row

  static FloatRows Of(MatrixView<const float> matrix);
  static FloatRows Of(MatrixView<const Bf16> matrix);
  // The last dimension is K, all others are rows. An error, naming the tensor, if it is not a float
  // tensor or has no dimension.
  static Result<FloatRows> Of(const TensorView& tensor, std::string_view name);

  const std::byte* row(int64_t r) const { return data + r * row_bytes; }
  FloatRows Rows(int64_t begin, int64_t count) const {
    return {dtype, count, k, row(begin), row_bytes};
  }
};

enum class Nvfp4Rule : uint8_t {
  kAmaxTo6,     // the block's largest value becomes 6
  k4Over6,      // 6 or 4, whichever gives the smaller squared error (nvfp4.md §5)
  kFlushEarly,  // as kAmaxTo6 with the predecessor's early flush, for parity tests; scalar
};

// Where codes and scales go: [rows, k/2] and [rows, k/16], linear, owned by the caller.
struct Nvfp4Output {
  uint8_t* codes = nullptr;
  uint8_t* block_scales = nullptr;

  static Nvfp4Output Of(Nvfp4Matrix& matrix) { return {matrix.codes(), matrix.block_scales()}; }
};

// Largest finite |x|, and how many elements are NaN or infinite.
struct MatrixAmax {
  float amax = 0;
  int64_t non_finite = 0;
};
MatrixAmax AmaxOf(const Context& context, const FloatRows& source);

// The global scale that `rule` wants for a tensor of this amax.
GlobalScale GlobalScaleFor(float amax, Nvfp4Rule rule);

// Under a given global scale ("static"; no pass over the data before). Errors: k is not a multiple
// of 16; a dtype other than the three; a global scale that is not finite and positive.
Result<Nvfp4BlockStats> QuantizeNvfp4(const Context& context, const FloatRows& source,
                                      GlobalScale global_scale, Nvfp4Rule rule, Nvfp4Output out);

// The transpose of a source [k, n], blocks along its columns: a weight that is stored [in, out].
// `out` is that of the matrix [n, k], byte for byte; on top some megabytes for a piece of the
// transpose. Errors as above; k is source.rows here.
Result<Nvfp4BlockStats> QuantizeNvfp4Transposed(const Context& context, const FloatRows& source,
                                                GlobalScale global_scale, Nvfp4Rule rule,
                                                Nvfp4Output out);

// Under the matrix's own global scale ("dynamic"). Bytes equal those of QuantizeNvfp4 with that
// scale. Infinite elements do not take part in the amax.
struct QuantizedMatrix {
  Nvfp4Matrix matrix;
  Nvfp4BlockStats stats;
};
Result<QuantizedMatrix> QuantizeNvfp4FromAmax(const Context& context, const FloatRows& source,
                                              Nvfp4Rule rule);

// Under a global scale for each row, from the row's amax ("per token"), written to
// row_scales[rows].
Result<Nvfp4BlockStats> QuantizeNvfp4PerRow(const Context& context, const FloatRows& source,
                                            Nvfp4Rule rule, Nvfp4Output out,
                                            GlobalScale* row_scales);

// out[rows, k] = (code * block_scale) * global_scale in fp32, rounded once; as bf16 rounded again.
void DequantizeNvfp4(const Context& context, const Nvfp4View& matrix, float* out);
void DequantizeNvfp4(const Context& context, const Nvfp4View& matrix, Bf16* out);

}  // namespace halfbyte
