// A program written down instead of carried out: the operations of a step, a line each, and the
// memory that its rows take. The test of a program's structure, without weights and without a
// device; and what a device asks before it reserves memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/program/model_ops.h"

namespace halfbyte {

class RecordedProgram : public ModelOps {
 public:
  // element_bytes: what an element of such rows takes on some device; null: 4.
  using ElementBytes = int64_t (*)(RowsName name);
  explicit RecordedProgram(const StepShape& step, ElementBytes element_bytes = nullptr)
      : step_(step), element_bytes_(element_bytes) {}

  // "project input[all,256]: layer 0 wkv -> window[all,128] bf16, ..."
  const std::vector<std::string>& operations() const { return operations_; }
  // Bytes of all rows that are live at once, at most.
  int64_t most_live_bytes() const { return most_live_; }

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
  std::vector<float> Read(Rows rows) const override;  // nothing: there are no numbers

 private:
  void OpenScope() override { outer_.push_back(live_); }
  void CloseScope() override {
    live_ = outer_.back();
    outer_.pop_back();
  }

  const StepShape step_;
  const ElementBytes element_bytes_;
  std::vector<std::string> operations_;
  std::vector<int64_t> outer_;  // live bytes outside of each open scope
  int64_t live_ = 0;
  int64_t most_live_ = 0;
};

}  // namespace halfbyte
