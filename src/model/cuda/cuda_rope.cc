#include "model/cuda/cuda_rope.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/rope/rope.h"

namespace halfbyte {
namespace {

// cos [positions, pairs], then sin.
void Fill(std::span<const double> frequencies, int64_t positions, ThreadPool& pool, float* cos) {
  const int64_t pairs = std::ssize(frequencies);
  float* const sin = cos + positions * pairs;
  pool.ParallelFor(positions, 1024, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> some(static_cast<size_t>(end - begin));
    std::iota(some.begin(), some.end(), begin);
    RopeAngles angles;
    angles.Set(frequencies, some);
    std::copy(angles.cos.begin(), angles.cos.end(), cos + begin * pairs);
    std::copy(angles.sin.begin(), angles.sin.end(), sin + begin * pairs);
  });
}

}  // namespace

Result<CudaRope> CudaRope::Create(const RopeTables& rope, int64_t positions, ThreadPool& pool) {
  const int64_t pairs = std::ssize(rope.window), one = positions * pairs;
  CudaRope tables;
  tables.positions_ = positions;
  HB_ASSIGN_OR_RETURN(tables.memory_,
                      DeviceBuffer::Allocate(4 * one * int64_t{sizeof(float)}, "rotary tables"));
  auto* const memory = tables.memory_.as<float>();
  std::vector<float> host(static_cast<size_t>(2 * one));
  DeviceRope* table = &tables.window_;
  float* at = memory;
  for (const std::vector<double>* frequencies : {&rope.window, &rope.compressed}) {
    Fill(*frequencies, positions, pool, host.data());
    HB_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(at, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice),
                   "rotary tables"));
    *table = {.cos = at, .sin = at + one, .pairs = pairs};
    table = &tables.compressed_;
    at += 2 * one;
  }
  return tables;
}

}  // namespace halfbyte
