// What clients have of something that there is so much of: connections, memory for bodies. One of
// them never has more than its share, whatever is left. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace halfbyte {

class ClientShares {
 public:
  // `all` there is, at most `each` for one client.
  ClientShares(int64_t all, int64_t each) : left_(all), each_(each) {}

  // `client`: an address (ClientAddress). False, and nothing is taken: there is not so much left.
  bool Take(const std::string& client, int64_t amount) {
    const std::lock_guard lock(mutex_);
    const auto found = taken_.find(client);
    const int64_t has = found == taken_.end() ? 0 : found->second;
    if (amount > left_ || has + amount > each_) return false;
    left_ -= amount;
    taken_[client] += amount;
    return true;
  }
  void Give(const std::string& client, int64_t amount) {
    if (amount == 0) return;
    const std::lock_guard lock(mutex_);
    left_ += amount;
    const auto found = taken_.find(client);
    if ((found->second -= amount) == 0) taken_.erase(found);
  }
  bool AnyLeft() const {
    const std::lock_guard lock(mutex_);
    return left_ > 0;
  }

 private:
  mutable std::mutex mutex_;
  int64_t left_;
  const int64_t each_;
  std::map<std::string, int64_t> taken_;
};

}  // namespace halfbyte
