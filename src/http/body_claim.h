// What one body takes of the memory that the bodies of all requests have; given back when the claim
// is gone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "http/client_shares.h"

namespace halfbyte {

class BodyClaim {
 public:
  // So much of a body is free: what that comes to, the number of connections bounds.
  static constexpr int64_t kFreeBytes = 64 << 10;

  BodyClaim(std::shared_ptr<ClientShares> bodies, std::string client)
      : bodies_(std::move(bodies)), client_(std::move(client)) {}
  ~BodyClaim() { bodies_->Give(client_, claimed_); }
  BodyClaim(const BodyClaim&) = delete;
  BodyClaim& operator=(const BodyClaim&) = delete;

  // The body has `bytes` now. False if there is no room for them.
  bool Cover(int64_t bytes) {
    const int64_t more = std::max<int64_t>(0, bytes - kFreeBytes) - claimed_;
    if (more <= 0) return true;
    if (!bodies_->Take(client_, more)) return false;
    claimed_ += more;
    return true;
  }

 private:
  const std::shared_ptr<ClientShares> bodies_;
  const std::string client_;
  int64_t claimed_ = 0;
};

}  // namespace halfbyte
