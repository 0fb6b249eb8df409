#include "moe/packed_experts.h"

#include <fmt/format.h>

#include "base/memory_plan.h"

namespace halfbyte {
namespace {

// Of all matrices, if they have the same.
std::optional<PackedFormat> CommonFormat(const std::vector<ExpertWeights>& experts) {
  if (experts.empty()) return PackedFormat::kFourBit;
  const std::optional<PackedFormat> format = PackedFormatOf(experts.front().gate);
  for (const ExpertWeights& e : experts) {
    for (const WeightMatrix* w : {&e.gate, &e.up, &e.down}) {
      if (PackedFormatOf(*w) != format) return std::nullopt;
    }
  }
  return format;
}

}  // namespace

Result<std::optional<PackedExperts>> PackedExperts::Pack(
    ThreadPool& pool, const std::vector<ExpertWeights>& experts, const ExpertPlacement& placement,
    const std::function<void(LocalExpert)>& packed, std::string_view name) {
  const std::optional<PackedFormat> format = CommonFormat(experts);
  if (!format) return std::nullopt;
  int64_t bytes = 0;
  for (const ExpertWeights& e : experts) {
    bytes += PackedBytes(e.gate) + PackedBytes(e.up) + PackedBytes(e.down);
  }
  MemoryPlan plan;
  plan.Add("packed experts", bytes);
  HB_RETURN_IF_ERROR(plan.Check(ReadAvailableMemory(), name,
                                "more memory is needed, or experts spread over ranks"));
  PackedExperts all;
  all.format_ = *format;
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
