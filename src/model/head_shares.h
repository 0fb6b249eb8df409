// The last product of a step that threads have shared out by tokens (batch_shares.h): logits of the
// shares' rows. A thread that is done with its own share's rows helps the others with theirs, by
// ranges of the vocabulary. So the threads of a step end together, though one may have begun late
// or have more tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "model/projection.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

class HeadShares {
 public:
  // For one step. `head` must outlive it.
  HeadShares(const Projection& head, size_t shares) : head_(head), shares_(shares) {}

  // The share's thread is at work on its tokens.
  void Begin(size_t share);
  // It has their rows x, as the head wants them (Projection::Prepare): they become logits [x's
  // rows, vocab]. Returns when there is nothing more to begin with in any share that was begun: all
  // logits are there when each share's thread has returned.
  void Finish(const Context& context, size_t share, const Projection::Operand& x,
              MatrixView<float> logits);

 private:
  enum class State : int { kWaiting, kBegun, kReady };
  struct Share {
    alignas(64) std::atomic<State> state = State::kWaiting;
    std::atomic<int64_t> next = 0;  // the first column that nobody has taken
    // Once ready:
    Projection::Operand x;
    MatrixView<float> logits;
  };

  void Multiply(const Context& context, Share& share) const;

  const Projection& head_;
  std::vector<Share> shares_;
};

}  // namespace halfbyte
