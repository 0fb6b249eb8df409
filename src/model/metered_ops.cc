#include "model/metered_ops.h"

#include <chrono>

namespace halfbyte {
namespace {

using Clock = std::chrono::steady_clock;

OperationKind KindOf(Rows x, std::span<const Product> products) {
  if (products.front().weight.module == Module::kRouter) return OperationKind::kRouter;
  switch (x.name) {
    case RowsName::kLowRank:
      return OperationKind::kProjectLowRank;
    case RowsName::kAttended:
      return OperationKind::kProjectAttended;
    case RowsName::kGrouped:
      return OperationKind::kProjectGrouped;
    default:
      return OperationKind::kProjectInput;
  }
}

}  // namespace

const char* OperationName(OperationKind kind) {
  constexpr std::array<const char*, kOperationKinds> kNames = {
      "embed",           "boundary", "project input", "project low-rank", "project attended",
      "project grouped", "store",    "select",        "attend",           "router",
      "route",           "experts",  "keep wanted",   "merge streams",    "logits"};
  return kNames[static_cast<size_t>(kind)];
}

OperationSum OperationMeter::total() const {
  OperationSum total;
  for (const OperationSum& sum : sums_) {
    total.calls += sum.calls;
    total.seconds += sum.seconds;
    total.work += sum.work;
  }
  return total;
}

template <class Operation>
auto MeteredOps::Time(OperationKind kind, const OperationWork& work, const Operation& operation) {
  struct Measured {
    OperationSum& sum;
    const Clock::time_point start = Clock::now();
    ~Measured() { sum.seconds += std::chrono::duration<double>(Clock::now() - start).count(); }
  };
  OperationSum& sum = meter_.sums_[static_cast<size_t>(kind)];
  ++sum.calls;
  sum.work += work;
  const Measured measured{sum};
  return operation();
}

Rows MeteredOps::Take(RowsName name, TokenSet tokens, int64_t columns) {
  return ops_.Take(name, tokens, columns);
}

void MeteredOps::Embed(const ModuleKey& table, Rows streams, Rounding rounding) {
  Time(OperationKind::kEmbed, work_.Embed(table, streams),
       [&] { ops_.Embed(table, streams, rounding); });
}

void MeteredOps::CrossBoundary(const Boundary& boundary) {
  Time(OperationKind::kBoundary, work_.CrossBoundary(boundary),
       [&] { ops_.CrossBoundary(boundary); });
}

void MeteredOps::Project(Rows x, std::span<const Product> products) {
  Time(KindOf(x, products), work_.Project(x, products), [&] { ops_.Project(x, products); });
}

void MeteredOps::Store(const CacheRows& rows) {
  Time(OperationKind::kStore, {}, [&] { ops_.Store(rows); });
}

void MeteredOps::Select(const Selection& selection) {
  Time(OperationKind::kSelect, work_.Select(selection), [&] { ops_.Select(selection); });
}

void MeteredOps::Attend(const Attention& attention) {
  Time(OperationKind::kAttend, work_.Attend(attention), [&] { ops_.Attend(attention); });
}

void MeteredOps::Route(const Choice& choice) {
  Time(OperationKind::kRoute, {}, [&] { ops_.Route(choice); });
}

Status MeteredOps::RunExperts(const Experts& experts) {
  const std::vector<float> choices = ops_.Read(experts.choice.experts);
  return Time(OperationKind::kExperts, work_.RunExperts(experts, choices),
              [&] { return ops_.RunExperts(experts); });
}

Rows MeteredOps::KeepWanted(Rows all) {
  return Time(OperationKind::kKeepWanted, {}, [&] { return ops_.KeepWanted(all); });
}

void MeteredOps::MergeStreams(Rows streams, Rows x, Rounding rounding) {
  Time(OperationKind::kMergeStreams, work_.MergeStreams(streams),
       [&] { ops_.MergeStreams(streams, x, rounding); });
}

void MeteredOps::Logits(Rows x, const ModuleKey& head) {
  Time(OperationKind::kLogits, work_.Logits(x, head), [&] { ops_.Logits(x, head); });
}

}  // namespace halfbyte
