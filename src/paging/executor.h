// What runs a step: a model on some device, or a script (engine/fake_executor.h). All that the
// engine knows about either.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "paging/kv_pages.h"
#include "paging/step_plan.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// Fixed for the life of an executor.
struct ExecutorLimits {
  KvPoolSizes pools;     // pages there are
  int64_t window = 128;  // positions a query looks back, itself included
  // As many tokens, computed again, make the windows of all layers exact where no row of them is
  // left: window - 1 for each layer (server.md §1.5).
  int64_t replay_tokens = 0;
  int64_t batch_tokens = 512;  // most tokens of one step
  int64_t max_model_len = 0;   // most positions of one sequence
  int64_t vocabulary = 0;      // ids are 0 .. vocabulary-1; the width of a row of logits
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ExecutorLimits& limits() const = 0;

  // Carries out one step. Returns logits [rows, vocabulary] in fp32: for each item in order the
  // rows it asks for; valid until the next call. A row depends on its own sequence alone, to the
  // bit (server.md §1.7); a row that is not finite is the caller's to notice and spoils no other.
  // Error: the device failed; the executor is of no use then.
  virtual Result<MatrixView<const float>> Run(const StepPlan& plan) = 0;

  // NVFP4 blocks of activations since the start whose wanted scale was beyond the largest: the
  // static scale of their layer is too small. Not during Run.
  virtual int64_t saturated_blocks() const { return 0; }
};

}  // namespace halfbyte
