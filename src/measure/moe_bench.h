// Speed of one MoE layer's routed experts on this machine, beside the limits of the machine at the
// same time. Steps route as bench_routing.h says: unless told otherwise to the experts that have
// rested longest, so weights come from memory as they do in a model of many layers. Each is
// followed by a pass that only reads as many bytes of the same memory.
//
// With several ranks (docs/ranks.md) each holds a part of the experts, and a step ends when every
// rank has the sum over all. A time is that of the slowest rank; rates are sums over ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/memory_plan.h"
#include "base/result.h"
#include "comm/communicator.h"
#include "device/context.h"
#include "measure/bench_routing.h"
#include "measure/moe_shape.h"
#include "moe/moe_layer.h"
#include "moe/moe_workspace.h"

namespace halfbyte {

struct MoeBenchOptions {
  MoeShape shape;
  std::vector<int64_t> tokens;         // a row of the report for each ...
  std::vector<Arithmetic> arithmetic;  // ... and each of these
  BenchRouting routing;
  double seconds_per_row = 2;  // of measuring; at least three steps are measured
};

// Medians over steps, in microseconds where the name says so.
struct MoeBenchRow {
  int64_t tokens = 0;
  Arithmetic arithmetic = Arithmetic::kW4a16;
  std::string kernel;
  int64_t steps = 0;
  double route_us = 0;  // from logits to experts and weights
  double layer_us = 0;  // from hidden rows and routing to the sum over experts
  // Parts of the layer, measured in steps of their own.
  double plan_us = 0;
  double gate_up_us = 0;             // with gathering the rows and the activation function
  double down_us = 0;                // with requantizing h and combining
  int64_t weight_bytes = 0;          // of the experts that a step touches, as stored; the mean
  int64_t flops = 0;                 // of a step; a multiply-add is two
  double read_bytes_per_second = 0;  // of the passes between the row's steps
  double steady_us = 0;              // the layer under continuous load; GPUs only, else 0
  double read_share = 0;  // median of (bytes per second of a step / of the pass after it)
};

struct MoeBenchReport {
  MoeShape shape;
  BenchRouting routing;
  int ranks = 1;
  int threads = 0;  // of each rank
  std::string cpu;
  std::string instruction_set;
  int64_t memory_bytes = 0;  // PlanMoeBench of all ranks
  // Medians over the whole run.
  double read_bytes_per_second = 0;
  double int8_ops = 0;
  double bf16_flops = 0;
  double fp32_flops = 0;
  std::string int8_instruction;  // fp32's where the machine has nothing better
  std::string bf16_instruction;
  double pack_bytes_per_second = 0;  // of the last layer that was packed; 0: none
  std::vector<MoeBenchRow> rows;
};

// Of the workspace that each of `ranks` has.
MoeLimits MoeBenchLimits(const MoeBenchOptions& options, int ranks);

// What one of `ranks` takes: weights, workspace, activations.
MemoryPlan PlanMoeBench(const MoeBenchOptions& options, int ranks);

// Ranks that share the experts, and how many of them share the memory of this machine.
struct BenchRanks {
  int all = 1;
  int here = 1;
};

// Every rank tells the others. Error: a rank was given other options.
Result<BenchRanks> CountBenchRanks(const MoeBenchOptions& options, Communicator& ranks);

// Errors: no tokens, no arithmetic, a number of tokens outside 1..kMaxBenchTokens, fewer experts
// than ranks; more memory needed than is available.
inline constexpr int64_t kMaxBenchTokens = 65536;
Status CheckMoeBench(const MoeBenchOptions& options, BenchRanks ranks,
                     const AvailableMemory& available);

// Checks with the machine's available memory, then measures. All ranks call it alike; all get the
// same times and rates. Errors also: another rank failed or was given other options.
Result<MoeBenchReport> BenchMoe(const Context& context, const MoeBenchOptions& options,
                                Communicator& ranks);

// {limits: {read_gb_per_s, int8_gops, bf16_gflops, ...}, rows: [{tokens, arithmetic, layer_us,
// weight_bytes, flops, ...}], ...}: docs/bench.md. And the same as a table.
Json MoeBenchJson(const MoeBenchReport& report);
std::string MoeBenchText(const MoeBenchReport& report);

}  // namespace halfbyte
