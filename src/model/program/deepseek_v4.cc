#include "model/program/deepseek_v4.h"

#include <optional>
#include <vector>

namespace halfbyte {
namespace {

using Block = Site::Block;

class Program {
 public:
  Program(const ModelConfig& config, const ProgramOptions& options, const StepShape& step,
          ModelOps& ops)
      : config_(config), rounding_(options.rounding), options_(options), step_(step), ops_(ops) {}

  Status Run() {
    const RowsScope scope(ops_);
    const int64_t last = config_.layer_count() - 1;
    Rows streams =
        Take(RowsName::kStreams, TokenSet::kAll, config_.hc_streams * config_.hidden_size);
    Rows x = Take(RowsName::kInput, TokenSet::kAll, config_.hidden_size);
    ops_.Embed(ModuleKey::Global(Module::kEmbed), streams, rounding_);
    ops_.CrossBoundary(
        {.streams = streams, .entered = Site{0, Block::kAttention}, .x = x, .rounding = rounding_});
    for (int64_t l = 0; l < last; ++l) {
      HB_RETURN_IF_ERROR(RunLayer(l, TokenSet::kAll, streams, x));
    }
    const bool looked_at = options_.whole_last_layer || options_.observer != nullptr;
    const TokenSet going_on = looked_at ? TokenSet::kAll : TokenSet::kWanted;
    HB_RETURN_IF_ERROR(RunLayer(last, going_on, streams, x));
    if (step_.count(TokenSet::kWanted) == 0) return {};
    if (streams.tokens == TokenSet::kAll) streams = ops_.KeepWanted(streams);
    const Rows head_input = Take(RowsName::kHeadInput, TokenSet::kWanted, config_.hidden_size);
    ops_.MergeStreams(streams, head_input, rounding_);
    ops_.Logits(head_input, ModuleKey::Global(Module::kHead));
    return {};
  }

 private:
  Rows Take(RowsName name, TokenSet tokens, int64_t columns) {
    return ops_.Take(name, tokens, columns);
  }

  // Begins with the attention's input in x and ends with that of the next layer. `going_on`: the
  // tokens that are needed beyond the cache; streams and x have these afterwards.
  Status RunLayer(int64_t l, TokenSet going_on, Rows& streams, Rows& x) {
    const RowsScope scope(ops_);
    const Rows attended = Take(RowsName::kAttentionOut, going_on, config_.hidden_size);
    const Rows mixed = Take(RowsName::kMoeOut, going_on, config_.hidden_size);
    const ModelOps::Choice choice{
        .layer = l,
        .experts = Take(RowsName::kChoices, going_on, config_.experts_per_token),
        .weights = Take(RowsName::kChoiceWeights, going_on, config_.experts_per_token)};
    RunAttention(l, x, attended);
    if (step_.count(going_on) == 0) return {};
    if (going_on == TokenSet::kWanted) {
      streams = ops_.KeepWanted(streams);
      x.tokens = TokenSet::kWanted;
    }
    const Site moe{l, Block::kMoe};
    ops_.CrossBoundary({.streams = streams,
                        .left = Site{l, Block::kAttention},
                        .y = attended,
                        .entered = moe,
                        .x = x,
                        .rounding = rounding_});
    HB_RETURN_IF_ERROR(RunMoe(choice, x, mixed));
    const bool last = l + 1 == config_.layer_count();
    ops_.CrossBoundary(
        {.streams = streams,
         .left = moe,
         .y = mixed,
         .entered = last ? std::nullopt : std::optional<Site>({l + 1, Block::kAttention}),
         .x = x,
         .rounding = rounding_});
    if (options_.observer != nullptr) {
      options_.observer->OnLayer(ops_, l, attended, mixed, choice, streams);
    }
    return {};
  }

  void RunAttention(int64_t l, Rows x, Rows out) {
    const RowsScope scope(ops_);
    const LayerConfig& kind = config_.layers[static_cast<size_t>(l)];
    const AttentionLayer attention{l, kind.attention, kind.compress_rate};
    const bool compresses = kind.attention != AttentionKind::kWindow;
    const bool indexes = kind.attention == AttentionKind::kC4;
    const TokenSet going_on = out.tokens;
    // Where no query sees more entries than it may choose, all are chosen and nothing is scored.
    const bool selects =
        indexes && step_.longest(going_on) / kind.compress_rate > config_.index_topk;
    const auto key = [l](Module module) { return ModuleKey::Layer(l, module); };

    std::vector<Product> products;
    const auto project = [&](Module weight, RowsName name, int64_t columns, Rounding rounding) {
      products.push_back({key(weight), Take(name, TokenSet::kAll, columns), rounding});
      return products.back().y;
    };
    ModelOps::CacheRows cache{.attention = attention, .rounding = rounding_};
    cache.window = project(Module::kKv, RowsName::kWindow, config_.head_dim, rounding_);
    cache.window_norm = key(Module::kKvNorm);
    cache.low_rank = project(Module::kQA, RowsName::kLowRank, config_.q_lora_rank, rounding_);
    cache.low_rank_norm = key(Module::kQNorm);
    const int64_t series = indexes ? 2 : 1;
    if (compresses) {
      const int64_t channels = series * config_.head_dim;
      const Rows kv = project(Module::kCompressorKv, RowsName::kEntryKv, channels, Rounding::kNone);
      const Rows score =
          project(Module::kCompressorGate, RowsName::kEntryScore, channels, Rounding::kNone);
      cache.entries = {kv,
                       score,
                       key(Module::kCompressorApe),
                       key(Module::kCompressorNorm),
                       config_.head_dim,
                       indexes};
    }
    if (indexes) {
      const int64_t channels = series * config_.index_head_dim;
      const Rows kv = project(Module::kIndexerKv, RowsName::kIndexKv, channels, Rounding::kNone);
      const Rows score =
          project(Module::kIndexerGate, RowsName::kIndexScore, channels, Rounding::kNone);
      cache.index = {
          kv,  score, key(Module::kIndexerApe), key(Module::kIndexerNorm), config_.index_head_dim,
          true};
    }
    Rows index_weights;
    if (selects) {
      index_weights =
          project(Module::kIndexerWeights, RowsName::kIndexWeights, config_.index_heads, rounding_);
    }
    ops_.Project(x, products);
    // Rows first: a query sees its own window row and the entry its own token completes.
    ops_.Store(cache);
    if (step_.count(going_on) == 0) return;

    Rows low_rank = cache.low_rank;
    if (going_on == TokenSet::kWanted) {
      low_rank = ops_.KeepWanted(low_rank);
      if (selects) index_weights = ops_.KeepWanted(index_weights);
    }
    RunQueries(attention, low_rank, selects ? std::optional(index_weights) : std::nullopt, out);
  }

  // index_weights: if entries are to be selected.
  void RunQueries(const AttentionLayer& attention, Rows low_rank,
                  const std::optional<Rows>& index_weights, Rows out) {
    const TokenSet tokens = out.tokens;
    const int64_t heads_dim = config_.attention_heads * config_.head_dim;
    const auto key = [&](Module module) { return ModuleKey::Layer(attention.layer, module); };
    const Rows queries = Take(RowsName::kQueries, tokens, heads_dim);
    std::vector<Product> products{{key(Module::kQB), queries, rounding_}};
    std::optional<ModelOps::Selection> selection;
    if (index_weights) {
      selection = {.attention = attention,
                   .queries = Take(RowsName::kIndexQueries, tokens,
                                   config_.index_heads * config_.index_head_dim),
                   .weights = *index_weights,
                   .selected = Take(RowsName::kSelected, tokens, config_.index_topk),
                   .count = Take(RowsName::kSelectedCount, tokens, 1),
                   .rounding = rounding_};
      products.push_back({key(Module::kIndexerQB), selection->queries, rounding_});
    }
    ops_.Project(low_rank, products);
    if (selection) ops_.Select(*selection);
    const Rows attended = Take(RowsName::kAttended, tokens, heads_dim);
    ops_.Attend({.attention = attention,
                 .queries = queries,
                 .selection = selection,
                 .sinks = key(Module::kAttentionSink),
                 .attended = attended,
                 .rounding = rounding_});
    const Rows grouped = Take(RowsName::kGrouped, tokens, config_.o_groups * config_.o_lora_rank);
    ops_.Project(attended, {key(Module::kOA), grouped, rounding_});
    ops_.Project(grouped, {key(Module::kOB), out, rounding_});
  }

  Status RunMoe(ModelOps::Choice choice, Rows x, Rows out) {
    const RowsScope scope(ops_);
    choice.logits = Take(RowsName::kRouterLogits, x.tokens, config_.routed_experts);
    ops_.Project(x, {ModuleKey::Layer(choice.layer, Module::kRouter), choice.logits});
    ops_.Route(choice);
    return ops_.RunExperts(
        {.layer = choice.layer, .x = x, .choice = choice, .y = out, .rounding = rounding_});
  }

  const ModelConfig& config_;
  const Rounding rounding_;
  const ProgramOptions& options_;
  const StepShape& step_;
  ModelOps& ops_;
};

}  // namespace

Status RunDeepseekV4(const ModelConfig& config, const ProgramOptions& options,
                     const StepShape& step, ModelOps& ops) {
  return Program(config, options, step, ops).Run();
}

}  // namespace halfbyte
