// Memory that the bodies of all requests take together. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace halfbyte {

class BodyBudget {
 public:
  explicit BodyBudget(int64_t bytes) : left_(bytes) {}

 private:
  friend class BodyClaim;
  std::atomic<int64_t> left_;
};

// What one body takes of it; given back when the claim is gone.
class BodyClaim {
 public:
  // So much of a body is free: what that comes to, the number of connections bounds.
  static constexpr int64_t kFreeBytes = 64 << 10;

  explicit BodyClaim(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyClaim() { budget_->left_ += claimed_; }
  BodyClaim(const BodyClaim&) = delete;
  BodyClaim& operator=(const BodyClaim&) = delete;

  // The body has `bytes` now. False if there is no room for them.
  bool Cover(int64_t bytes) {
    const int64_t more = std::max<int64_t>(0, bytes - kFreeBytes) - claimed_;
    if (more <= 0) return true;
    if ((budget_->left_ -= more) < 0) {
      budget_->left_ += more;
      return false;
    }
    claimed_ += more;
    return true;
  }

 private:
  const std::shared_ptr<BodyBudget> budget_;
  int64_t claimed_ = 0;
};

}  // namespace halfbyte
