// The operations of a model on the CPU, for one step after another.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/arena.h"
#include "device/context.h"
#include "kernels/attention/attention.h"
#include "kernels/compressor/compressor.h"
#include "kernels/indexer/indexer.h"
#include "model/cpu/cpu_kv_memory.h"
#include "model/cpu/cpu_weights.h"
#include "model/cpu/step_tables.h"
#include "model/program/model_ops.h"
#include "moe/expert_exchange.h"
#include "moe/moe_workspace.h"

namespace halfbyte {

// Of the arena that a step of so many tokens uses.
int64_t StepArenaBytes(const ModelConfig& config, int64_t tokens);

class CpuOps : public ModelOps {
 public:
  // All must outlive it. exchange: null if this rank has all experts. reference_tokens:
  // TransformerOptions.
  CpuOps(const Context& context, const ModelConfig& config, const RopeTables& rope,
         CpuWeights& weights, MoeWorkspace& workspace, ExpertExchange* exchange,
         int64_t reference_tokens)
      : context_(context),
        config_(config),
        rope_(rope),
        weights_(weights),
        workspace_(workspace),
        exchange_(exchange),
        reference_tokens_(reference_tokens) {}

  void Reserve(int64_t arena_bytes) { arena_.Reserve(arena_bytes); }
  int64_t arena_bytes() const { return arena_.capacity_bytes(); }

  // Must be called before a step; all must outlive it. logits: a row for each wanted token.
  void Begin(const StepTables& tables, const CpuKvMemory& cache, MatrixView<float> logits);

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
  std::vector<float> Read(Rows rows) const override;

 private:
  void OpenScope() override { scopes_.emplace_back(arena_); }
  void CloseScope() override { scopes_.pop_back(); }

  const TokenTables& tables(Rows rows) const { return tables_->of(rows.tokens); }
  template <class T = float>
  MatrixView<T> View(Rows rows) const;
  void KeepWanted(MatrixView<float> all) const;
  float norm_eps() const { return static_cast<float>(config_.rms_norm_eps); }

  template <class Body>
  void ForTokens(int64_t tokens, const Body& body) const;
  template <class Sequence, class Fill>
  std::span<const Sequence> Join(const TokenTables& tables, std::vector<Sequence>& joined,
                                 const Fill& fill) const;
  void StoreWindow(const CacheRows& rows);
  template <class Row, class Fill>
  void StoreCompressed(const AttentionLayer& attention, const Compression& compression,
                       Rounding rounding, const Row& row, const Fill& fill);

  const Context& context_;
  const ModelConfig& config_;
  const RopeTables& rope_;
  CpuWeights& weights_;
  MoeWorkspace& workspace_;
  ExpertExchange* const exchange_;
  const int64_t reference_tokens_;
  Arena arena_;
  std::deque<Arena::Scope> scopes_;

  // Of the step.
  const StepTables* tables_ = nullptr;
  const CpuKvMemory* cache_ = nullptr;
  MatrixView<float> logits_;
  std::array<void*, kRowsNames> data_ = {};
  MatrixView<float> post_, comb_, mix_;  // of CrossBoundary: what the way into the streams needs
  std::vector<WindowSequence> window_sequences_;
  std::vector<CompressorSequence> compressor_sequences_;
  std::vector<IndexerSequence> indexer_sequences_;
  std::vector<AttentionSequence> attention_sequences_;
};

}  // namespace halfbyte
