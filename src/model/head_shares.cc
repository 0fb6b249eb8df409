#include "model/head_shares.h"

#include <algorithm>

#include "base/await.h"

namespace halfbyte {
namespace {

constexpr int64_t kColumns = 256;  // taken at once

}  // namespace

void HeadShares::Begin(size_t share) {
  shares_[share].state.store(State::kBegun, std::memory_order_relaxed);
}

void HeadShares::Finish(const Context& context, size_t share, const Projection::Operand& x,
                        MatrixView<float> logits) {
  Share& own = shares_[share];
  own.x = x;
  own.logits = logits;
  own.state.store(State::kReady, std::memory_order_release);
  own.state.notify_all();
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& next = shares_[(share + i) % shares_.size()];
    // One that has not begun may be this thread's own to begin.
    if (next.state.load(std::memory_order_relaxed) == State::kWaiting) continue;
    Await(next.state, [](State state) { return state == State::kReady; });
    Multiply(context, next);
  }
}

void HeadShares::Multiply(const Context& context, Share& share) const {
  if (share.logits.rows == 0) return;
  const int64_t columns = share.logits.columns;
  for (int64_t begin; (begin = share.next.fetch_add(kColumns)) < columns;) {
    head_.ForwardColumns(context, share.x, begin, std::min(begin + kColumns, columns),
                         share.logits);
  }
}

}  // namespace halfbyte
