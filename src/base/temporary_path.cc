#include "base/temporary_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstring>
#include <string>

namespace halfbyte {
namespace {

constexpr int kSlots = 64;

}  // namespace

// In static memory: a signal handler may look at any time.
struct TemporaryPath::Slot {
  enum State : int { kFree, kBeingFilled, kUsed };
  std::atomic<int> state = kFree;
  dev_t device = 0;
  ino_t inode = 0;
  char path[PATH_MAX] = {};

  void RemoveFile() const {
    struct stat there {};
    if (::lstat(path, &there) != 0 || there.st_dev != device || there.st_ino != inode) return;
    ::unlink(path);
  }
};

TemporaryPath::Slot* TemporaryPath::slots() {
  constinit static Slot all[kSlots];
  return all;
}

TemporaryPath::TemporaryPath(const std::filesystem::path& path) {
  struct stat there {};
  const std::string absolute = std::filesystem::absolute(path).string();
  if (absolute.size() >= PATH_MAX || ::lstat(absolute.c_str(), &there) != 0) return;
  for (Slot* slot = slots(); slot != slots() + kSlots; ++slot) {
    int expected = Slot::kFree;
    if (!slot->state.compare_exchange_strong(expected, Slot::kBeingFilled)) continue;
    slot->device = there.st_dev;
    slot->inode = there.st_ino;
    std::memcpy(slot->path, absolute.c_str(), absolute.size() + 1);
    slot->state = Slot::kUsed;
    slot_ = slot;
    return;
  }
}

TemporaryPath& TemporaryPath::operator=(TemporaryPath&& other) noexcept {
  if (this != &other) {
    Remove();
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

void TemporaryPath::Remove() {
  if (slot_ != nullptr) slot_->RemoveFile();
  Keep();
}

void TemporaryPath::Keep() {
  if (slot_ != nullptr) slot_->state = Slot::kFree;
  slot_ = nullptr;
}

void RemoveTemporaryPaths() {
  for (TemporaryPath::Slot* slot = TemporaryPath::slots(); slot != TemporaryPath::slots() + kSlots;
       ++slot) {
    if (slot->state == TemporaryPath::Slot::kUsed) slot->RemoveFile();
  }
}

namespace {

struct sigaction g_before[NSIG];  // what a signal did before we took it

}  // namespace

void RemoveTemporaryPathsWhenKilled() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int number, siginfo_t* info, void*) {
    RemoveTemporaryPaths();
    ::sigaction(number, &g_before[number], nullptr);
    // A fault happens again when this returns, a signal that was sent does not.
    if (info->si_code <= 0) ::raise(number);
  };
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU, SIGABRT, SIGSEGV, SIGILL,
                           SIGFPE, SIGSYS, SIGALRM, SIGVTALRM, SIGUSR1, SIGUSR2, SIGPIPE}) {
    ::sigaction(number, nullptr, &g_before[number]);
    if (g_before[number].sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);
  }
}

}  // namespace halfbyte
