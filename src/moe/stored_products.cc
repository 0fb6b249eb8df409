#include "moe/stored_products.h"

#include <algorithm>

#include "kernels/linear/linear.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"

namespace halfbyte {
namespace {

// Numbers copied that outweigh the start of a piece of a parallel loop.
constexpr int64_t kMinCopied = 65536;

// out = code * block_scale of what was quantized.
void Decode(const Context& context, int64_t rows, int64_t columns, const MoeWorkspace& ws,
            float* out) {
  DequantizeNvfp4(context,
                  {rows, columns, ws.codes.get(), ws.block_scales.get(), GlobalScale(1.0f)}, out);
}

// The weight without its global scale.
WeightMatrix Unscaled(WeightMatrix w) {
  w.global_scale = GlobalScale(1.0f);
  return w;
}

}  // namespace

const WeightMatrix& StoredProducts::Of(ExpertMatrix matrix, LocalExpert expert) const {
  const ExpertWeights& e = experts_[static_cast<size_t>(Index(expert))];
  return matrix == ExpertMatrix::kGate ? e.gate : matrix == ExpertMatrix::kUp ? e.up : e.down;
}

// rows = each slot's hidden row.
void StoredProducts::PrepareTokens(const Context& context, MatrixView<const float> x, int64_t top_k,
                                   bool quantized, MoeWorkspace& ws) const {
  const int64_t width = x.columns;
  if (quantized) Decode(context, x.rows, width, ws, ws.activations.get());
  const float* from = quantized ? ws.activations.get() : x.data;
  context.pool().ParallelFor(
      ws.plan.offsets().padded_rows(),
      std::max<int64_t>(1, kMinCopied / std::max<int64_t>(1, width)),
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t token = ws.plan.slot_of_padded_row(row) / top_k;
          std::copy_n(from + token * width, width, ws.rows.get() + row * width);
          ws.row_scales[static_cast<size_t>(row)] =
              quantized ? ws.quantized_scales[static_cast<size_t>(token)].value() : 1.0f;
        }
      });
}

void StoredProducts::PrepareH(const Context& context, MatrixView<float> h, bool quantized,
                              MoeWorkspace& ws) const {
  if (!quantized) return;
  Decode(context, h.rows, h.columns, ws, h.data);
  for (int64_t r = 0; r < h.rows; ++r) {
    ws.row_scales[static_cast<size_t>(r)] = ws.quantized_scales[static_cast<size_t>(r)].value();
  }
}

void StoredProducts::Multiply(const Context& context, ExpertMatrix matrix,
                              const MoeWorkspace::Task& task, const MoeWorkspace& ws,
                              MatrixView<float> y) const {
  const WeightMatrix w = Unscaled(Of(matrix, task.expert));
  const float* rows = matrix == ExpertMatrix::kDown ? ws.gate.get() : ws.rows.get();
  const MatrixView<const float> x{rows + ws.plan.offsets().begin(task.expert) * w.columns, y.rows,
                                  w.columns};
  if (fp64_sums_) {
    LinearF64Range(x, w, task.begin, task.end, y);
  } else {
    LinearRange(context, x, w, task.begin, task.end, y);
  }
}

}  // namespace halfbyte
