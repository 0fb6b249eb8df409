// Memory of a MoE layer between its steps: one per device, shared by all layers, used by one call
// at a time. What it held before never changes a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/dispatch_plan/dispatch_plan.h"
#include "numerics/global_scale.h"

namespace halfbyte {

// The largest of everything over the layers that share the workspace.
struct MoeLimits {
  int64_t tokens = 512;  // taken through a layer at once; more are done in pieces
  int64_t top_k = 1;
  int64_t experts = 1;  // local ones
  int64_t hidden = 0;
  int64_t intermediate = 0;

  int64_t slots() const { return tokens * top_k; }
};

// The CPU computes from decoded rows, which need no padding (moe-layer.md §5).
inline constexpr int64_t kCpuRowAlignment = 1;

// Only MoeLayer writes here.
struct MoeWorkspace {
  // Bytes of the buffers below; the plan and the task list, some bytes per slot, come on top.
  static int64_t Bytes(const MoeLimits& limits);

  explicit MoeWorkspace(const MoeLimits& limits);

  // A range of an expert's output channels: one piece of a parallel loop.
  struct Task {
    LocalExpert expert;
    int64_t begin;
    int64_t end;
  };

  MoeLimits limits;
  DispatchPlan plan;
  std::vector<Task> tasks;
  std::vector<int32_t> dense_ids;    // [tokens] zeros: everybody to expert 0 ...
  std::vector<float> dense_weights;  // [tokens] ... with weight 1

  // rows = slots; not cleared.
  std::unique_ptr<float[]> activations;   // [tokens, hidden] code * block_scale, kW4a4 only
  std::unique_ptr<std::byte[]> operands;  // [rows] of the packed kernels, of the wider stage
  std::unique_ptr<float[]> rows;          // [rows, hidden] gathered, later the slot values
  std::unique_ptr<float[]> gate;          // [rows, intermediate], later h
  std::unique_ptr<float[]> up;            // [rows, intermediate]
  std::unique_ptr<uint8_t[]> codes;       // of the larger stage
  std::unique_ptr<uint8_t[]> block_scales;
  std::vector<GlobalScale> quantized_scales;  // [rows] of the rows just quantized
  std::unique_ptr<float[]> row_scales;        // [rows] by padded_row, for alpha
};

}  // namespace halfbyte
