// An executor without a model, for tests and for `--load-format fake` (server.md §1.10).
//
//   script   a function says which token follows: rows of logits with one peak
//   memory   every page holds what a model of two layers would write there, token id and position
//            among it, and logits are a hash of exactly the rows that a query may see
//            (deepseek-v4.md §2.4): a wrong, stale or missing row changes or fails the output
//
// In both modes each plan is checked: positions contiguous, budgets kept, ids in the vocabulary, no
// page written that another sequence of the step holds. A plan that breaks a rule, or a read of a
// row that is not there, is an error that says which.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "paging/executor.h"

namespace halfbyte {

struct FakeOptions {
  ExecutorLimits limits;
  // Script mode: which token follows `token` at `position`. Null: memory mode.
  std::function<int32_t(SequenceId sequence, int64_t position, int32_t token)> script;

  // How long a step takes, and who lets that time pass: by default the thread sleeps for what its
  // own work has left of it. A test may count instead, or stall.
  std::chrono::nanoseconds step_time{0};
  std::chrono::nanoseconds token_time{0};
  std::function<void(std::chrono::nanoseconds)> wait;

  int64_t fail_at_step = 0;                 // the executor fails there; 0: never
  std::function<bool(SequenceId)> nan_row;  // rows of this sequence are NaN
};

class FakeExecutor : public Executor {
 public:
  explicit FakeExecutor(FakeOptions options);

  const ExecutorLimits& limits() const override { return options_.limits; }
  Result<MatrixView<const float>> Run(const StepPlan& plan) override;

  // Of its two layers: rows of the second depend on window rows of the first.
  static constexpr int64_t ReplayTokens(int64_t window) { return 2 * (window - 1); }

  // Memory mode without pages: the logits after the last of `tokens`, computed from nothing else.
  static std::vector<float> LogitsAfter(std::span<const int32_t> tokens,
                                        const ExecutorLimits& limits);

 private:
  struct Row {  // of a window page or ring
    int64_t position = -1;
    uint64_t first = 0;   // of layer 1: the token itself
    uint64_t second = 0;  // of layer 2: everything layer 1 shows it
  };
  struct Entry {  // a compressed row
    int64_t number = -1;
    uint64_t hash = 0;
  };

  Status CheckPlan(const StepPlan& plan);
  Status CheckPages(const StepPlan& plan);
  void Copy(const PageCopy& copy);
  void MoveTail(const TailMove& move, bool restore);
  Status WriteToken(const SequencePages& pages, int64_t position, int32_t token);
  Result<uint64_t> HashWindow(const SequencePages& pages, int64_t position,
                              uint64_t Row::*part) const;
  Result<uint64_t> HashVisible(const SequencePages& pages, int64_t position) const;
  Status PoolEntries(const SequencePages& pages, int64_t position);
  Status RunItem(const PlanItem& item);
  void PutLogits(uint64_t hash);

  const FakeOptions options_;
  int64_t steps_ = 0;
  std::vector<float> logits_;
  std::vector<int64_t> slot_positions_;  // tokens that a slot has seen; -1: unknown
  std::vector<Row> window_;              // [window pages, 64]
  std::vector<Entry> quarters_;          // [context blocks, 64]: groups of 4
  std::vector<Entry> halves_;            // [context blocks, 2]: groups of 128
  std::vector<Row> small_rings_;         // [slots, 8]
  std::vector<Row> large_rings_;         // [slots, 128]
  std::vector<Row> tails_;               // [tails, 4]
};

}  // namespace halfbyte
