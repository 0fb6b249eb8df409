// A file or socket that is there only as long as we use it.
#pragma once

#include <filesystem>
#include <utility>

namespace halfbyte {

class TemporaryPath {
 public:
  // Nothing.
  TemporaryPath() = default;
  // What stands at `path` now, which the caller has just made. It is removed when this object goes,
  // or when the program is killed (below), unless something else stands there by then.
  explicit TemporaryPath(const std::filesystem::path& path);
  ~TemporaryPath() { Remove(); }
  TemporaryPath(TemporaryPath&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  TemporaryPath& operator=(TemporaryPath&& other) noexcept;

  void Remove();
  // It stays: it is not temporary any more.
  void Keep();

 private:
  struct Slot;
  friend void RemoveTemporaryPaths();
  static Slot* slots();
  Slot* slot_ = nullptr;
};

// Removes what all objects of the process stand for; for ends that run no destructors. May be
// called from signal handlers.
void RemoveTemporaryPaths();

// For programs: signals that end the program call RemoveTemporaryPaths first.
void RemoveTemporaryPathsWhenKilled();

}  // namespace halfbyte
