#include "moe/packed_experts.h"

#include <fmt/format.h>

#include <algorithm>

namespace halfbyte {
namespace {

bool IsFourBit(const WeightMatrix& w) {
  return w.format == WeightFormat::kNvfp4 || w.format == WeightFormat::kMxfp4;
}

bool AreFourBit(const ExpertWeights& e) {
  return IsFourBit(e.gate) && IsFourBit(e.up) && IsFourBit(e.down);
}

}  // namespace

Result<std::optional<PackedExperts>> PackedExperts::Pack(
    ThreadPool& pool, const std::vector<ExpertWeights>& experts, const ExpertPlacement& placement,
    const std::function<void(LocalExpert)>& packed, std::string_view name) {
  if (!std::all_of(experts.begin(), experts.end(), AreFourBit)) return std::nullopt;
  int64_t bytes = 0;
  for (const ExpertWeights& e : experts) {
    bytes += PackedBytes(e.gate) + PackedBytes(e.up) + PackedBytes(e.down);
  }
  PackedExperts all;
  HB_ASSIGN_OR_RETURN(all.memory_, ZeroedMemory::Allocate(bytes, "packed experts", Pages::kHuge));
  auto* next = reinterpret_cast<uint8_t*>(all.memory_.data());
  for (int32_t i = 0; i < std::ssize(experts); ++i) {
    const LocalExpert local{i};
    const ExpertWeights& source = experts[static_cast<size_t>(i)];
    PackedExpert& expert = all.experts_.emplace_back();
    const auto pack = [&](const WeightMatrix& w, PackedMatrix& out,
                          const char* part) -> Result<bool> {
      const std::string title =
          fmt::format("{}, expert {}, {}", name, Index(placement.ToGlobal(local)), part);
      HB_ASSIGN_OR_RETURN(const std::optional<PackedMatrix> matrix,
                          PackMatrix(pool, w, next, title));
      if (!matrix) return false;
      out = *matrix;
      next += out.bytes();
      return true;
    };
    HB_ASSIGN_OR_RETURN(const bool gate, pack(source.gate, expert.gate, "gate"));
    HB_ASSIGN_OR_RETURN(const bool up, pack(source.up, expert.up, "up"));
    HB_ASSIGN_OR_RETURN(const bool down, pack(source.down, expert.down, "down"));
    if (!gate || !up || !down) return std::nullopt;
    if (packed) packed(local);
  }
  return all;
}

}  // namespace halfbyte
