#include "kernels/grouped_linear/grouped_linear.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/linear/linear.h"

namespace halfbyte {

void GroupedLinear(const Context& context, MatrixView<const float> x, int64_t groups,
                   const WeightMatrix& w, MatrixView<float> y) {
  const int64_t k = w.columns;
  const int64_t n = w.rows / groups;
  HB_CHECK(x.columns == groups * k && w.rows == groups * n && y.columns == w.rows,
           "x [{}, {}], w [{}, {}], y [{}, {}], {} groups", x.rows, x.columns, w.rows, w.columns,
           y.rows, y.columns, groups);
  // Rows of one group side by side. One token's groups lie so already.
  std::vector<float> gathered;
  const float* by_group = x.data;
  if (x.rows > 1) {
    gathered.resize(static_cast<size_t>(x.rows * x.columns));
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t t = 0; t < x.rows; ++t) {
        std::copy_n(x.row(t) + g * k, k, gathered.data() + (g * x.rows + t) * k);
      }
    }
    by_group = gathered.data();
  }
  if (n == 0) return;
  const int64_t grain = std::min(LinearGrain(context, x.rows, w), n);
  const int64_t pieces = (n + grain - 1) / grain;
  const int64_t pieces_per_task = std::max<int64_t>(1, LinearGrain(context, x.rows, w) / grain);
  context.pool().ParallelFor(groups * pieces, pieces_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t g = piece / pieces;
      const int64_t first = piece % pieces * grain;
      LinearRange(context, {by_group + g * x.rows * k, x.rows, k}, w, g * n + first,
                  g * n + std::min(first + grain, n), y);
    }
  });
}

}  // namespace halfbyte
