// What one step does, as plain data: the scheduler writes it, an executor carries it out. It names
// pages by id only, so the scheduler needs no device and a test can print and check it.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "paging/kv_pages.h"

namespace halfbyte {

using RequestId = int64_t;  // given by the engine, from 1 upwards, never twice

// One choice of one request.
struct SequenceId {
  RequestId request = 0;
  int32_t choice = 0;  // 0 .. n-1 (without Request::first_choice)

  auto operator<=>(const SequenceId&) const = default;
};

// Which rows of a chunk get logits.
enum class LogitsWanted { kNone, kLast, kAll };
int64_t LogitsRows(LogitsWanted wanted, int64_t tokens);

// One sequence's chunk of tokens.
struct PlanItem {
  SequenceId sequence;
  // Where the sequence's rows lie, the chunk's included; pages.position is the chunk's first
  // position. Valid until the scheduler's Advance.
  const SequencePages* pages = nullptr;
  std::vector<int32_t> tokens;
  LogitsWanted logits = LogitsWanted::kNone;
  // The choices that draw a token from the chunk's last row: none while the prompt lasts, several
  // when the prompt of a request with n > 1 ends, else the sequence's own.
  std::vector<int32_t> drawing_choices;

  int64_t logits_rows() const { return LogitsRows(logits, std::ssize(tokens)); }
};

struct StepPlan {
  int64_t number = 0;  // of the step, from 1
  // To be done in this order, one after another. Saves and copies (of a fork's own pages) come from
  // the step before and see what it left.
  std::vector<TailMove> saves;
  std::vector<PageCopy> copies;
  std::vector<TailMove> restores;
  std::vector<PlanItem> items;  // no sequence twice

  bool empty() const { return items.empty(); }
  int64_t tokens() const;
  int64_t logits_rows() const;
};

// One line per part: for logs and failing tests.
std::string ToString(const StepPlan& plan);

}  // namespace halfbyte
