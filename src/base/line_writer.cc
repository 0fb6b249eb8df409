#include "base/line_writer.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace halfbyte {

struct LineWriter::State {
  explicit State(int descriptor) : fd(descriptor) {}
  void Main();
  bool WriteAll(std::string_view line) const;

  const int fd;
  std::mutex mutex;
  std::condition_variable filled;
  std::condition_variable emptied;
  std::deque<std::string> lines;
  int64_t bytes = 0;  // of `lines`
  bool writing = false;
  std::atomic<int64_t> dropped = 0;
};

// SIGPIPE is ignored where lines are written, so a reader that has gone is an error like others.
bool LineWriter::State::WriteAll(std::string_view line) const {
  while (!line.empty()) {
    const ssize_t count = ::write(fd, line.data(), line.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    line.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

void LineWriter::State::Main() {
  std::unique_lock lock(mutex);
  while (true) {
    filled.wait(lock, [this] { return !lines.empty(); });
    const std::string line = std::move(lines.front());
    lines.pop_front();
    bytes -= std::ssize(line);
    writing = true;
    lock.unlock();
    if (!WriteAll(line)) ++dropped;
    lock.lock();
    writing = false;
    if (lines.empty()) emptied.notify_all();
  }
}

LineWriter::LineWriter(int fd) : state_(std::make_shared<State>(fd)) {
  // Signals are for the threads that wait for them.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state = state_] { state->Main(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool LineWriter::Write(std::string line) {
  {
    const std::lock_guard lock(state_->mutex);
    const int64_t size = std::ssize(line);
    if (state_->bytes + size > kMostBytes) {
      ++state_->dropped;
      return false;
    }
    state_->bytes += size;
    state_->lines.push_back(std::move(line));
  }
  state_->filled.notify_one();
  return true;
}

int64_t LineWriter::dropped() const { return state_->dropped; }

bool LineWriter::Drain(std::chrono::milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  return state_->emptied.wait_for(lock, patience,
                                  [this] { return state_->lines.empty() && !state_->writing; });
}

}  // namespace halfbyte
