#include "executor/model_executor.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace halfbyte {

// Sequences and their windows first, a tenth for snapshots, context blocks from the rest: server.md
// §1.4. No more of anything than can be used.
Result<ExecutorLimits> PlanExecutor(const ModelConfig& config, const TransformerOptions& model,
                                    const ModelExecutorOptions& options) {
  HB_ASSIGN_OR_RETURN(const KvLayout units, KvLayout::Create(config, model.math));
  const int64_t window = config.sliding_window;
  ExecutorLimits limits{.window = window,
                        .replay_tokens = (window - 1) * config.layer_count(),
                        .batch_tokens = model.batch_tokens,
                        .vocabulary = config.vocab_size};
  const int64_t longest =
      std::min(options.max_model_len.value_or(INT64_MAX), config.max_position_embeddings);
  const int64_t memory = options.kv_memory_bytes;
  const int64_t snapshot_bytes =
      KvPoolSizes::WindowPages(0, 0, 1, limits.window) * units.window_page_bytes() +
      units.tail_bytes();
  const auto most_blocks = [&](int64_t tokens) {
    return (tokens + kContextBlockTokens - 1) / kContextBlockTokens;
  };
  const int64_t wanted_blocks = options.max_sequences * most_blocks(longest);
  KvPoolSizes& pools = limits.pools;
  pools.state_slots = options.max_sequences;
  pools.tails = options.snapshots.value_or(
      std::min(memory / 10 / std::max<int64_t>(1, snapshot_bytes), wanted_blocks));
  pools.window_pages = KvPoolSizes::WindowPages(options.max_sequences, limits.batch_tokens,
                                                pools.tails, limits.window);
  const int64_t fixed = units.BytesOf(pools);
  const int64_t block_bytes = std::max<int64_t>(1, units.context_block_bytes());
  const int64_t affordable = std::max<int64_t>(0, memory - fixed) / block_bytes;
  pools.context_blocks = std::min(affordable, wanted_blocks);
  limits.max_model_len = options.max_model_len
                             ? longest
                             : std::min(longest, pools.context_blocks * kContextBlockTokens);
  if (pools.context_blocks < most_blocks(limits.max_model_len) || pools.context_blocks < 1) {
    return MakeError(
        ErrorKind::kMemory,
        "{} bytes of KV memory: {} sequences with their windows and {} snapshots take {}, which "
        "leaves {} context blocks of {} bytes, but max_model_len {} needs {}; the largest that "
        "fits "
        "is {}",
        memory, options.max_sequences, pools.tails, fixed, affordable, block_bytes, longest,
        most_blocks(longest), affordable * kContextBlockTokens);
  }
  return limits;
}

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::Create(Transformer& model,
                                                             const ModelExecutorOptions& options) {
  HB_ASSIGN_OR_RETURN(const ExecutorLimits limits,
                      PlanExecutor(model.config(), model.options(), options));
  HB_ASSIGN_OR_RETURN(auto memory, model.NewMemory(limits.pools));
  return std::unique_ptr<ModelExecutor>(new ModelExecutor(model, std::move(memory), limits));
}

Result<MatrixView<const float>> ModelExecutor::Run(const StepPlan& plan) {
  for (const TailMove& move : plan.saves) HB_RETURN_IF_ERROR(memory_->SaveTail(move));
  for (const PageCopy& copy : plan.copies) HB_RETURN_IF_ERROR(memory_->Copy(copy));
  for (const TailMove& move : plan.restores) HB_RETURN_IF_ERROR(memory_->RestoreTail(move));
  std::vector<PlacedItem> batch;
  for (const PlanItem& item : plan.items) batch.push_back({item.pages, item.tokens, item.logits});
  return model_.Forward(*memory_, batch);
}

int64_t ModelExecutor::saturated_blocks() const {
  int64_t blocks = 0;
  for (int64_t layer = 0; layer < model_.config().layer_count(); ++layer) {
    const MoeCounters counters = model_.moe_counters(layer);
    blocks += counters.gate_up.clipped + counters.down.clipped;
  }
  return blocks;
}

}  // namespace halfbyte
