// What ranks, processes that work on one model together, say to each other. Every rank calls the
// same operations in the same order with the same sizes, and waits in each for all others.
//
// No rank waits for one that will not come: before data moves, the ranks exchange what each is
// about to do. If one has failed (Leave), does something else or names other sizes, the operation
// is an error on every rank, and so are all later ones (EP-03: an error that only one participant
// sees would be a hang). A rank whose process dies is noticed by what carries the messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace halfbyte {

// One thread uses it at a time. Buffers of different ranks must not overlap.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }  // the rank that prints

  Status Barrier();

  // The bytes of rank `root` on every rank.
  Status Broadcast(std::span<std::byte> data, int root);

  // Rank r contributes counts[r] numbers; `all`, as long as all of them, receives rank 0's, then
  // rank 1's, ...: bits are moved, never computed with. `counts` is the same on every rank.
  Status AllGather(std::span<const float> mine, std::span<const int64_t> counts,
                   std::span<float> all);

  // Every rank's objects, rank 0's first, on every rank; each contributes as many.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  Result<std::vector<T>> Collect(std::span<const T> mine) {
    std::vector<T> all(mine.size() * static_cast<size_t>(size_));
    HB_RETURN_IF_ERROR(CollectBytes(std::as_bytes(mine), std::as_writable_bytes(std::span(all))));
    return all;
  }

  // values[i] = ((rank 0's + rank 1's) + rank 2's) + ...: ascending ranks, so every rank gets the
  // same bits, whatever carries them. The bits change with the number of ranks.
  Status AllReduceSum(std::span<float> values);

  // The largest of the ranks' values[i]; NaN if any of them is.
  Status AllReduceMax(std::span<float> values);

  // Every rank's last call; `ok` says whether its work succeeded. A rank that fails between two
  // operations calls it at once and so ends the others' next operation. Returns whether this rank
  // should report its failure: exactly one does if ranks failed by themselves, all that are left if
  // the connection broke.
  bool Leave(bool ok);

 protected:
  Communicator(int rank, int size);

  bool left() const { return left_; }
  bool connection_broke() const { return broke_; }

 private:
  enum class Operation : int64_t {
    kBarrier = 1,
    kBroadcast,
    kGather,
    kCollect,
    kSum,
    kMax,
    kLeave
  };
  // What a rank is about to do.
  struct Call {
    Operation operation;
    uint64_t sizes;  // a digest of them
    int64_t failed;
  };

  // Concatenates the ranks' bytes in rank order into `all` on every rank; rank r's are bytes[r].
  virtual Status GatherBytes(std::span<const std::byte> mine, std::span<const int64_t> bytes,
                             std::byte* all) = 0;

  Status Agree(Operation operation, std::span<const int64_t> sizes, bool failed = false);
  Status CompareCalls();
  Status Move(std::span<const std::byte> mine, std::span<const int64_t> bytes, std::byte* all);
  tl::unexpected<Error> Break(std::string message, bool report);
  Status CollectBytes(std::span<const std::byte> mine, std::span<std::byte> all);
  template <class Combine>
  Status Reduce(std::span<float> values, const Combine& combine);

  const int rank_;
  const int size_;
  bool left_ = false;
  bool broke_ = false;          // the connection, not a rank's work
  bool report_ = false;         // this rank speaks about error_
  std::optional<Error> error_;  // from now on the answer to every call
  std::vector<Call> calls_;     // by rank
  std::vector<int64_t> bytes_;  // by rank
  std::vector<float> pieces_;   // by rank, of AllReduce
};

// How many of the ranks share this machine's memory, this one included: all of one kernel.
Result<int> RanksOnThisMachine(Communicator& ranks);

}  // namespace halfbyte
