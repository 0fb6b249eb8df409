#include "comm/communicator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace halfbyte {
namespace {

// Numbers of one rank that AllReduce moves at a time.
constexpr size_t kReducePiece = 16384;

uint64_t Digest(std::span<const int64_t> sizes) {  // FNV-1a over whole numbers
  uint64_t digest = 0xcbf29ce484222325;
  for (const int64_t size : sizes) digest = (digest ^ static_cast<uint64_t>(size)) * 0x100000001b3;
  return digest;
}

}  // namespace

Communicator::Communicator(int rank, int size)
    : rank_(rank),
      size_(size),
      calls_(static_cast<size_t>(size)),
      bytes_(static_cast<size_t>(size)) {
  HB_CHECK(size >= 1 && rank >= 0 && rank < size, "rank {} of {}", rank, size);
}

tl::unexpected<Error> Communicator::Break(std::string message, bool report) {
  report_ = report;
  error_ = Error{std::move(message)};
  return tl::unexpected<Error>(*error_);
}

Status Communicator::Move(std::span<const std::byte> mine, std::span<const int64_t> bytes,
                          std::byte* all) {
  const Status moved = GatherBytes(mine, bytes, all);
  if (moved) return {};
  broke_ = true;
  return Break(moved.error().message, /*report=*/true);
}

Status Communicator::Agree(Operation operation, std::span<const int64_t> sizes, bool failed) {
  if (error_) return tl::unexpected<Error>(*error_);
  HB_CHECK(!left_, "rank {} has left", rank_);
  const Call mine{operation, Digest(sizes), failed};
  std::fill(bytes_.begin(), bytes_.end(), int64_t{sizeof(Call)});
  HB_RETURN_IF_ERROR(Move(std::as_bytes(std::span(&mine, 1)), bytes_,
                          reinterpret_cast<std::byte*>(calls_.data())));
  return CompareCalls();
}

Status Communicator::CompareCalls() {
  for (int r = 0; r < size_; ++r) {
    if (!calls_[static_cast<size_t>(r)].failed) continue;
    return Break(fmt::format("rank {} of {} failed", r, size_), /*report=*/r == rank_);
  }
  // Ranks that have left did well: the first of those still at work reports.
  int first_at_work = 0;
  while (first_at_work < size_ &&
         calls_[static_cast<size_t>(first_at_work)].operation == Operation::kLeave) {
    ++first_at_work;
  }
  for (int r = 1; r < size_; ++r) {
    const Call& call = calls_[static_cast<size_t>(r)];
    if (call.operation == calls_[0].operation && call.sizes == calls_[0].sizes) continue;
    return Break(fmt::format("rank {} of {} is doing something else than rank 0: start all ranks "
                             "with the same program, model and flags",
                             r, size_),
                 /*report=*/first_at_work == rank_);
  }
  return {};
}

Status Communicator::Barrier() { return Agree(Operation::kBarrier, {}); }

Status Communicator::Broadcast(std::span<std::byte> data, int root) {
  HB_CHECK(root >= 0 && root < size_, "root {} of {}", root, size_);
  const int64_t sizes[] = {std::ssize(data), root};
  HB_RETURN_IF_ERROR(Agree(Operation::kBroadcast, sizes));
  std::fill(bytes_.begin(), bytes_.end(), 0);
  bytes_[static_cast<size_t>(root)] = std::ssize(data);
  std::vector<std::byte> sent;  // what is sent and what is received must not overlap
  if (rank_ == root) sent.assign(data.begin(), data.end());
  return Move(sent, bytes_, data.data());
}

Status Communicator::AllGather(std::span<const float> mine, std::span<const int64_t> counts,
                               std::span<float> all) {
  HB_CHECK(std::ssize(counts) == size_ && std::ssize(mine) == counts[static_cast<size_t>(rank_)] &&
               std::ssize(all) == std::accumulate(counts.begin(), counts.end(), int64_t{0}),
           "{} numbers of rank {}, {} counts for {} ranks, room for {}", mine.size(), rank_,
           counts.size(), size_, all.size());
  HB_RETURN_IF_ERROR(Agree(Operation::kGather, counts));
  for (size_t r = 0; r < counts.size(); ++r) bytes_[r] = counts[r] * int64_t{sizeof(float)};
  return Move(std::as_bytes(mine), bytes_, reinterpret_cast<std::byte*>(all.data()));
}

Status Communicator::CollectBytes(std::span<const std::byte> mine, std::span<std::byte> all) {
  const int64_t sizes[] = {std::ssize(mine)};
  HB_RETURN_IF_ERROR(Agree(Operation::kCollect, sizes));
  std::fill(bytes_.begin(), bytes_.end(), std::ssize(mine));
  return Move(mine, bytes_, all.data());
}

template <class Combine>
Status Communicator::Reduce(std::span<float> values, const Combine& combine) {
  pieces_.resize(static_cast<size_t>(size_) * kReducePiece);
  for (; !values.empty(); values = values.subspan(std::min(values.size(), kReducePiece))) {
    const std::span<float> piece = values.first(std::min(values.size(), kReducePiece));
    std::fill(bytes_.begin(), bytes_.end(), std::ssize(piece) * int64_t{sizeof(float)});
    HB_RETURN_IF_ERROR(
        Move(std::as_bytes(piece), bytes_, reinterpret_cast<std::byte*>(pieces_.data())));
    std::copy_n(pieces_.data(), piece.size(), piece.data());
    for (size_t r = 1; r < static_cast<size_t>(size_); ++r) {
      const float* other = pieces_.data() + r * piece.size();
      for (size_t i = 0; i < piece.size(); ++i) piece[i] = combine(piece[i], other[i]);
    }
  }
  return {};
}

Status Communicator::AllReduceSum(std::span<float> values) {
  const int64_t sizes[] = {std::ssize(values)};
  HB_RETURN_IF_ERROR(Agree(Operation::kSum, sizes));
  return Reduce(values, [](float a, float b) { return a + b; });
}

Status Communicator::AllReduceMax(std::span<float> values) {
  const int64_t sizes[] = {std::ssize(values)};
  HB_RETURN_IF_ERROR(Agree(Operation::kMax, sizes));
  return Reduce(values, [](float a, float b) { return b > a || std::isnan(b) ? b : a; });
}

bool Communicator::Leave(bool ok) {
  const bool agreed = Agree(Operation::kLeave, {}, !ok).has_value();
  left_ = true;
  // If this rank did well and others did not, they report.
  return !agreed && !ok && report_;
}

Result<int> RanksOnThisMachine(Communicator& ranks) {
  const std::string boot = ReadTextFile("/proc/sys/kernel/random/boot_id").value_or("");
  const size_t mine = std::hash<std::string>()(boot);
  HB_ASSIGN_OR_RETURN(const auto all, ranks.Collect(std::span<const size_t>(&mine, 1)));
  return static_cast<int>(std::ranges::count(all, mine));
}

}  // namespace halfbyte
