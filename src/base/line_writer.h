// Writes lines to a file descriptor (a log, stdout) from a thread of its own, so that nobody who
// has something to say waits for whoever reads: a pipe that nobody empties, a paused terminal, a
// full disk. What there is no room for, or what cannot be written, is dropped and counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace halfbyte {

class LineWriter {
 public:
  // Of lines that wait; one that is longer is never taken.
  static constexpr int64_t kMostBytes = 4 << 20;

  // `fd` stays open as long as the program runs. Its thread is never waited for: it may be stuck in
  // a write until the program ends.
  explicit LineWriter(int fd);

  // Never waits. False: the line was dropped.
  bool Write(std::string line);
  // Lines that never reached the descriptor so far.
  int64_t dropped() const;
  // Waits for what was given so far to be written, but not longer than `patience`. False: some of
  // it is left.
  bool Drain(std::chrono::milliseconds patience);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // with the thread
};

}  // namespace halfbyte
