// How long the operations of a model take, and what they must read and compute meanwhile: stands
// between a program and any device, which know nothing of it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "model/program/model_ops.h"
#include "model/step_work.h"

namespace halfbyte {

enum class OperationKind : uint8_t {
  kEmbed,
  kBoundary,
  kProjectInput,  // what meets a block's input, but for the router
  kProjectLowRank,
  kProjectAttended,
  kProjectGrouped,
  kStore,
  kSelect,
  kAttend,
  kRouter,  // its product
  kRoute,   // its choices
  kExperts,
  kKeepWanted,
  kMergeStreams,
  kLogits,
};
inline constexpr int kOperationKinds = static_cast<int>(OperationKind::kLogits) + 1;
const char* OperationName(OperationKind kind);

struct OperationSum {
  int64_t calls = 0;
  double seconds = 0;
  OperationWork work;
};

// What operations took since the last Reset.
class OperationMeter {
 public:
  // Of the model; must outlive it.
  explicit OperationMeter(const WeightSource& source) : sizes_(source) {}

  const OperationSum& of(OperationKind kind) const { return sums_[static_cast<size_t>(kind)]; }
  OperationSum total() const;
  void Reset() { sums_ = {}; }

 private:
  friend class MeteredOps;

  WeightSizes sizes_;
  std::array<OperationSum, kOperationKinds> sums_;
};

class MeteredOps : public ModelOps {
 public:
  // For one step; all must outlive it.
  MeteredOps(ModelOps& ops, const KvLayout& cache, std::span<const PlacedItem> batch,
             OperationMeter& meter)
      : ops_(ops), work_(meter.sizes_, cache, batch), meter_(meter) {}

  Rows Take(RowsName name, TokenSet tokens, int64_t columns) override;
  void Embed(const ModuleKey& table, Rows streams, Rounding rounding) override;
  void CrossBoundary(const Boundary& boundary) override;
  using ModelOps::Project;
  void Project(Rows x, std::span<const Product> products) override;
  void Store(const CacheRows& rows) override;
  void Select(const Selection& selection) override;
  void Attend(const Attention& attention) override;
  void Route(const Choice& choice) override;
  Status RunExperts(const Experts& experts) override;
  Rows KeepWanted(Rows all) override;
  void MergeStreams(Rows streams, Rows x, Rounding rounding) override;
  void Logits(Rows x, const ModuleKey& head) override;
  std::vector<float> Read(Rows rows) const override { return ops_.Read(rows); }

 private:
  void OpenScope() override { scopes_.emplace_back(ops_); }
  void CloseScope() override { scopes_.pop_back(); }
  template <class Operation>
  auto Time(OperationKind kind, const OperationWork& work, const Operation& operation);

  ModelOps& ops_;
  StepWork work_;
  OperationMeter& meter_;
  std::deque<RowsScope> scopes_;
};

}  // namespace halfbyte
