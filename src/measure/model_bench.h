// Speed of a whole model of real shape on this machine, beside the limits of the machine at the
// same time. Weights are made up (model/synthetic_weights.h), and so are the caches that steps of
// generation continue (model/synthetic_cache.h). Each such step is followed by a pass that reads as
// many bytes of memory; between rows the packed kernels run alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/memory_plan.h"
#include "base/result.h"
#include "checkpoint/model_config.h"
#include "device/context.h"
#include "model/metered_ops.h"
#include "moe/moe_params.h"

namespace halfbyte {

struct ModelBenchOptions {
  std::string shape;   // for the report
  ModelConfig config;  // with as many layers and experts as wanted
  Arithmetic arithmetic = Arithmetic::kW4a16;
  std::vector<int64_t> batches;   // sequences that generate at once: a row for each ...
  std::vector<int64_t> contexts;  // ... and each of these numbers of tokens, all sequences alike
  std::vector<int64_t> prompts;   // a row for each prompt of so many tokens
  int64_t chunk = 512;            // tokens of a prompt that go through the model together
  double seconds_per_row = 2;     // of measuring; at least three steps, or one prompt
};

using OperationSums = std::array<OperationSum, kOperationKinds>;

// Medians over steps; a prompt is one step, whatever its chunks. Counts are means.
struct ModelBenchRow {
  int64_t sequences = 0;
  int64_t context =
      0;  // tokens that a step's new ones look back at, themselves included; 0: prompt
  int64_t new_tokens = 0;
  int64_t steps = 0;
  double seconds = 0;
  double shortest_seconds = 0;
  double layer_seconds = 0;  // without the product of the head
  OperationWork work;        // of a step
  OperationSums operations;  // of a step
  // Of the passes after the row's steps, and medians of (bytes per second of a step / of its pass);
  // 0 for prompts.
  double read_bytes_per_second = 0;
  double read_share = 0;
  double layer_read_share = 0;
  double gemm_seconds = 0;  // what the step's products would take at the packed kernels' rates
};

struct ModelBenchReport {
  ModelBenchOptions options;
  int threads = 0;
  std::string cpu;
  std::string instruction_set;
  int64_t memory_bytes = 0;   // PlanModelBench
  double making_seconds = 0;  // weights made and packed
  int64_t weight_bytes = 0;   // of all, as stored
  // Medians over the whole run, per second. 0: not measured.
  double read_bytes = 0;
  double int8_ops = 0;
  double bf16_flops = 0;
  std::array<double, kWeightFormats> gemm_flops = {};  // of products with weights of each format
  std::vector<ModelBenchRow> rows;
};

// What the bench takes: weights in both forms where they are, caches, what limits are measured
// with.
Result<MemoryPlan> PlanModelBench(const ModelBenchOptions& options, ThreadPool& pool);

// The plan. Errors: a context or prompt that the model cannot have, ref (which computes from stored
// weights), sizes that NVFP4 cannot have; more memory needed than is available.
Result<MemoryPlan> CheckModelBench(const ModelBenchOptions& options, ThreadPool& pool,
                                   const AvailableMemory& available);

// Checks with the machine's available memory, then measures.
Result<ModelBenchReport> BenchModel(const Context& context, const ModelBenchOptions& options);

// docs/bench-model.md says what the fields are. And the same as tables.
Json ModelBenchJson(const ModelBenchReport& report);
std::string ModelBenchText(const ModelBenchReport& report);

}  // namespace halfbyte
