// moe_bench.h on a GPU: one layer's experts beside the limits of the GPU in the same process. The
// same report, with these differences.
//
// A step is a replay of a captured graph. Each step has a routing of its own; the weights of all
// experts are many times what the L2 cache holds. A time is that of a run of steps back to
// back (4 to 16, about 20 ms), divided by their number: the median over 15 runs with pauses of five
// times their length, in which the board cools down, and once more under continuous load
// (steady_us), which the board's power limit slows. MoeBenchRow::steps counts the runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "device/context.h"
#include "measure/moe_bench.h"

namespace halfbyte {

// Errors: as CheckMoeBench; no usable GPU; another arithmetic than w4a16 and w4a4; not enough GPU
// memory, with the numbers.
Result<MoeBenchReport> BenchMoeOnGpu(const Context& context, const MoeBenchOptions& options);

// Which kernels a call of each number of tokens would run with, one line each; needs no GPU.
std::string ExplainMoeOnGpu(const MoeShape& shape, std::span<const int64_t> tokens);

}  // namespace halfbyte
