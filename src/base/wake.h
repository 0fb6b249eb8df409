// How a thread that may sleep is told that there is something for it.
#pragma once

#include <functional>
#include <utility>

namespace halfbyte {

// In two parts, so that one signal tells of many things: who has several for the same thread marks
// each, then signals. Both parts are cheap, and may be called from any thread, any number of times,
// also when nobody listens any more: they do nothing then. An empty Wake tells nobody.
class Wake {
 public:
  Wake() = default;
  explicit Wake(std::function<void()> mark, std::function<void()> signal = {})
      : mark_(std::move(mark)), signal_(std::move(signal)) {}

  // There is something: whoever listens looks at it after the next signal.
  void Mark() const {
    if (mark_) mark_();
  }
  // Look at all that is marked.
  void Signal() const {
    if (signal_) signal_();
  }
  void operator()() const {
    Mark();
    Signal();
  }

 private:
  std::function<void()> mark_;
  std::function<void()> signal_;
};

}  // namespace halfbyte
