// Keeps an eye on who brings keys that are not valid. Right keys never get here: whatever others
// have tried from the same address, they are admitted at once, so nobody can be locked out. Wrong
// ones are all answered alike; from an address that brought several the answers come late and the
// log gets no line for each, so guessing fills neither the log nor the server. Thread-safe; time is
// an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace halfbyte {

class RefusedKeys {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static constexpr int kFree = 10;                   // refusals of an address, at once ...
  static constexpr std::chrono::seconds kRefill{1};  // ... and one more after each of these
  static constexpr std::chrono::seconds kDelay{1};   // of answers beyond
  static constexpr size_t kMostAddresses = 1024;     // more share one

  struct Verdict {
    TimePoint answer_at;     // not before
    bool log = false;        // a line is due
    int64_t not_logged = 0;  // refusals of this address since its last line, without this one
  };
  // `peer`: as HttpRequest's; its port does not matter, nor does the part of an IPv6 address that
  // its owner chooses.
  Verdict Add(std::string_view peer, TimePoint now);

 private:
  struct Address {
    TimePoint refilled;  // when all kFree are there again
    int64_t not_logged = 0;
  };
  Address& Find(std::string key, TimePoint now);

  std::mutex mutex_;
  std::map<std::string, Address, std::less<>> addresses_;
};

}  // namespace halfbyte
