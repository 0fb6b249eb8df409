#include "kernels/linear/linear.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/linear/linear_simd.h"
#include "numerics/mxfp4_block.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// Rows of one register tile of the fastest variant; pieces are multiples of it.
constexpr int64_t kRowTile = 4;
// Multiply-adds that outweigh the start of a parallel piece (about 2 microseconds of one core).
constexpr int64_t kMinPiece = 65536;
// Pieces per thread of a large product, so that a thread that lost its processor delays little.
constexpr int64_t kPiecesPerThread = 8;

void CheckShapes(MatrixView<const float> x, const WeightMatrix& w, MatrixView<float> y) {
  HB_CHECK(x.columns == w.columns && y.rows == x.rows && y.columns == w.rows,
           "x [{}, {}], w [{}, {}], y [{}, {}]", x.rows, x.columns, w.rows, w.columns, y.rows,
           y.columns);
  const int64_t block = w.format == WeightFormat::kNvfp4   ? kNvfp4Block
                        : w.format == WeightFormat::kMxfp4 ? kMxfp4Block
                                                           : 1;
  HB_CHECK(w.columns % block == 0, "{} weight of {} columns", WeightFormatName(w.format),
           w.columns);
  const bool scaled = block > 1 || w.format == WeightFormat::kFp8;
  HB_CHECK(!scaled || w.scales != nullptr || w.rows * w.columns == 0, "{} weight without scales",
           WeightFormatName(w.format));
}

void RunRange(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
              bool segments, int64_t begin, int64_t end, MatrixView<float> y) {
  CheckShapes(x, w, y);
  HB_CHECK(0 <= begin && begin <= end && end <= w.rows, "rows [{}, {}) of {}", begin, end, w.rows);
  const LinearArguments arguments{
      .x = x.data,
      .y = y.data,
      .w = &w,
      .tokens = x.rows,
      .k = w.columns,
      .n = w.rows,
      .begin = begin,
      .end = end,
      .row_bytes = w.row_bytes(),
      .scale_row_bytes = w.scale_columns() * DTypeSize(w.scale_dtype),
      .segments = segments,
      .factor = w.format == WeightFormat::kNvfp4 ? w.global_scale.value() : 1.0f};
  switch (context.isa()) {
    case CpuIsa::kScalar:
      return simd_scalar::LinearTile(arguments);
    case CpuIsa::kAvx2:
      return simd_avx2::LinearTile(arguments);
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return simd_avx512::LinearTile(arguments);
  }
}

}  // namespace

int64_t LinearGrain(const Context& context, int64_t tokens, const WeightMatrix& w) {
  const int64_t row_work = std::max<int64_t>(tokens * w.columns, 1);
  const int64_t threads = context.pool().threads();
  int64_t pieces =
      std::clamp<int64_t>(w.rows * row_work / kMinPiece, 1, kPiecesPerThread * threads);
  // All of equal size: as many for every thread.
  if (pieces > threads) pieces -= pieces % threads;
  return RoundUp((w.rows + pieces - 1) / pieces, kRowTile);
}

void LinearRange(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
                 int64_t begin, int64_t end, MatrixView<float> y) {
  RunRange(context, x, w, /*segments=*/false, begin, end, y);
}

void Linear(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
            MatrixView<float> y) {
  context.pool().ParallelFor(
      w.rows, LinearGrain(context, x.rows, w),
      [&](int64_t begin, int64_t end) { LinearRange(context, x, w, begin, end, y); });
}

void LinearSegments(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
                    MatrixView<float> y) {
  context.pool().ParallelFor(w.rows, LinearGrain(context, x.rows, w),
                             [&](int64_t begin, int64_t end) {
                               RunRange(context, x, w, /*segments=*/true, begin, end, y);
                             });
}

}  // namespace halfbyte
