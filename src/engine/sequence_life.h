// The states of a sequence (server.md §1.2). A state owns what it needs: pages and slot belong to
// the running ones, so leaving them gives the memory back. Any transition that is not below is a
// broken invariant.
//
//   Waiting --Admit--> Prefill --PromptDone--> Decode     (a fork of another's prompt: Fork)
//   Prefill, Decode --Preempt--> Waiting
//   all --> Finished, by destroying the life
#pragma once

#include <cstdint>
#include <utility>
#include <variant>

#include "base/check.h"
#include "engine/prefix_cache.h"
#include "paging/kv_pages.h"

namespace halfbyte {

// Pages and slot, and the cached blocks among the pages.
struct HeldMemory {
  PrefixCache::Chain chain;
  Sequence sequence;
};

struct Waiting {};
struct Prefill {
  HeldMemory memory;
  int64_t branch_point = 0;  // where cached blocks went on without a snapshot; 0: nowhere
};
struct Decode {
  HeldMemory memory;
};

class SequenceLife {
 public:
  bool waiting() const { return std::holds_alternative<Waiting>(state_); }
  bool prefilling() const { return std::holds_alternative<Prefill>(state_); }
  bool decoding() const { return std::holds_alternative<Decode>(state_); }

  // Of a running sequence.
  HeldMemory& memory() {
    HB_CHECK(!waiting(), "a waiting sequence has no memory");
    return prefilling() ? std::get<Prefill>(state_).memory : std::get<Decode>(state_).memory;
  }
  int64_t branch_point() const { return std::get<Prefill>(state_).branch_point; }

  void Admit(HeldMemory memory, int64_t branch_point) {
    HB_CHECK(waiting(), "state {} admitted", state_.index());
    state_.emplace<Prefill>(std::move(memory), branch_point);
  }
  void Fork(HeldMemory memory) {
    HB_CHECK(waiting(), "state {} forked", state_.index());
    state_.emplace<Decode>(std::move(memory));
  }
  void PromptDone() {
    HB_CHECK(prefilling(), "state {} has no prompt left", state_.index());
    HeldMemory memory = std::move(std::get<Prefill>(state_).memory);
    state_.emplace<Decode>(std::move(memory));
  }
  void Preempt() {
    HB_CHECK(!waiting(), "state {} preempted", state_.index());
    state_.emplace<Waiting>();
  }

 private:
  std::variant<Waiting, Prefill, Decode> state_;
};

}  // namespace halfbyte
