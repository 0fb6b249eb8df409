#include "server/refused_keys.h"

#include <algorithm>
#include <utility>

#include "http/http.h"

namespace halfbyte {

RefusedKeys::Verdict RefusedKeys::Add(std::string_view peer, TimePoint now) {
  const std::lock_guard lock(mutex_);
  Address& address = Find(ClientAddress(peer), now);
  address.refilled = std::max(address.refilled, now) + kRefill;
  if (address.refilled > now + kFree * kRefill) {
    address.refilled = now + kFree * kRefill;
    ++address.not_logged;
    return {.answer_at = now + kDelay};
  }
  return {.answer_at = now, .log = true, .not_logged = std::exchange(address.not_logged, 0)};
}

RefusedKeys::Address& RefusedKeys::Find(std::string key, TimePoint now) {
  if (addresses_.size() >= kMostAddresses && !addresses_.contains(key)) {
    std::erase_if(addresses_, [&](const auto& each) { return each.second.refilled <= now; });
    if (addresses_.size() >= kMostAddresses) key = "others";
  }
  return addresses_[std::move(key)];
}

}  // namespace halfbyte
