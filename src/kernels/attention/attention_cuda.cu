#include <algorithm>

#include "device/cuda/launch.cuh"
#include "kernels/attention/attention_blocks.cuh"
#include "kernels/attention/attention_splits.cuh"

namespace halfbyte {
namespace attention {
namespace {

// Up to as many tiles of heads (of all tokens) are spread over the device; more would fill it.
constexpr int64_t kMostSplitRows = 48;

int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }

template <class Kernel>
cudaError_t Prepare(Kernel* kernel, uint32_t shared_bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes));
}

// Blocks that take `items` one after the other.
cudaError_t BlocksFor(int64_t items, unsigned* blocks) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  *blocks = static_cast<unsigned>(std::min<int64_t>(items, processors));
  return error;
}

template <class D>
cudaError_t LaunchSplits(const AttentionArguments& a, const SplitShape& shape,
                         cudaStream_t stream) {
  using Weigh = WeighLayout<D>;
  using Sum = SumLayout<D>;
  const int64_t rows = int64_t{shape.tokens} * shape.head_tiles;
  unsigned weigh_blocks = 0, sum_blocks = 0;
  cudaError_t error = BlocksFor(rows * shape.key_tiles, &weigh_blocks);
  if (error == cudaSuccess) error = BlocksFor(rows * D::kGroups, &sum_blocks);
  if (error == cudaSuccess) error = Prepare(WeighSplits<D>, Weigh::kSharedBytes);
  if (error == cudaSuccess) error = Prepare(SumSplits<D>, Sum::kSharedBytes);
  if (error == cudaSuccess) {
    error = LaunchDependent(WeighSplits<D>,
                            {dim3(weigh_blocks), dim3(Weigh::kThreads), Weigh::kSharedBytes},
                            stream, a, shape);
  }
  if (error == cudaSuccess) {
    error = LaunchDependent(
        SumSplits<D>, {dim3(sum_blocks), dim3(Sum::kThreads), Sum::kSharedBytes}, stream, a, shape);
  }
  return error;
}

template <class D>
cudaError_t LaunchBlocks(const AttentionArguments& a, int64_t head_tiles, cudaStream_t stream) {
  using Layout = BlockLayout<D>;
  const cudaError_t error = Prepare(AttendByBlocks<D>, Layout::kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(
      AttendByBlocks<D>,
      {dim3(static_cast<unsigned>(a.tokens.count), static_cast<unsigned>(head_tiles)),
       dim3(Layout::kThreads), Layout::kSharedBytes},
      stream, a);
}

template <class D>
bool Fits(const DeviceRows& rows) {
  return rows.rows_per_page > 0 && rows.main_bytes == D::kFp8Dim + 2 * D::kRopeDim &&
         rows.scale_bytes == 8 && rows.page_bytes() % 16 == 0;
}

template <class D>
cudaError_t Launch(const AttentionArguments& a, cudaStream_t stream) {
  if (a.window < 1 || a.rate < 0 || a.tokens.count < 0 || a.max_keys < 1 ||
      a.rope.pairs != D::kRopeDim / 2 || !Fits<D>(a.window_rows) ||
      (a.rate > 0 && !Fits<D>(a.entry_rows))) {
    return cudaErrorInvalidValue;
  }
  if (a.tokens.count == 0) return cudaSuccess;
  const int64_t head_tiles = CeilDiv(a.heads, kTileHeads);
  if (a.tokens.count * head_tiles > kMostSplitRows) return LaunchBlocks<D>(a, head_tiles, stream);
  const SplitShape shape{static_cast<int>(a.tokens.count), static_cast<int>(head_tiles),
                         static_cast<int>(CeilDiv(a.max_keys, kTileKeys))};
  return LaunchSplits<D>(a, shape, stream);
}

}  // namespace
}  // namespace attention

int64_t AttentionScratchBytes(int64_t tokens, int64_t heads, int64_t max_keys) {
  using namespace attention;
  const int64_t rows = std::min(tokens * CeilDiv(heads, kTileHeads), kMostSplitRows);
  return rows * CeilDiv(max_keys, kTileKeys) * kTileScratchBytes;
}

cudaError_t LaunchAttention(const AttentionArguments& arguments, cudaStream_t stream) {
  using namespace attention;
  if (arguments.head_dim == 512 && arguments.heads > 0 && arguments.heads % kTileHeads == 0) {
    return Launch<Dims<512, 64>>(arguments, stream);
  }
  if (arguments.head_dim == 128 && arguments.heads == 8) {
    return Launch<Dims<128, 32>>(arguments, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace halfbyte
