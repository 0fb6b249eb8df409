// The operations that models are made of, and what carries them out on one device.
//
// A *program* (deepseek_v4.h) says in which order a step's operations run, and decides everything
// about them: kinds of layers, when entries are selected, which tokens go on, where numbers are
// rounded. A device implements ModelOps: it knows how weights and rows lie in its memory, and may
// compute operations together or later, but it decides nothing. cpu/cpu_ops.h is the CPU;
// recorded_program.h writes the operations down.
//
// Operands are handles. A weight is named by its ModuleKey (checkpoint/tensor_name.h), which each
// device keeps in the form that suits it. Activations are Rows: they lie in memory of the device,
// as it likes (fp32, bf16, a tensor core's image, or nowhere if the operation that reads them is
// fused with the one that writes them).
//
// A step is a ragged batch: chunks of tokens of several sequences. Its tables (token ids,
// positions, pages, angles) are made once, by the device, before the program runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_name.h"
#include "numerics/rounding.h"

namespace halfbyte {

// Which tokens of a step: all of them, or those whose logits are wanted (the last of each chunk,
// as a rule), in the same order.
enum class TokenSet : uint8_t { kAll, kWanted };

// What activations are: a program has one live set of rows of each name at a time.
enum class RowsName : uint8_t {
  kStreams,        // the residual, n copies wide
  kInput,          // of a block, normed
  kAttentionOut,   // of the attention block
  kMoeOut,         // of the MoE block
  kWindow,         // the token's own key (which is its value)
  kLowRank,        // compressed queries
  kQueries,        // of all heads
  kEntryKv,        // what compressed entries are pooled from
  kEntryScore,     // and by which weights
  kIndexKv,        // the same of the indexer's keys
  kIndexScore,     //
  kIndexQueries,   // of all index heads
  kIndexWeights,   // of the index heads in a token's score
  kSelected,       // int32: chosen entries, ascending
  kSelectedCount,  // int32: how many
  kAttended,       // of all heads
  kGrouped,        // of the grouped output projection
  kRouterLogits,
  kChoices,        // int32: experts
  kChoiceWeights,  // and their weights
  kHeadInput,
};
inline constexpr int kRowsNames = static_cast<int>(RowsName::kHeadInput) + 1;
const char* NameOf(RowsName name);

// [tokens of the step, columns]
struct Rows {
  RowsName name = RowsName::kStreams;
  TokenSet tokens = TokenSet::kAll;
  int64_t columns = 0;
};

// The sizes by which a program decides. On a device that replays one graph for many steps these
// are bounds, and the tables hold each step's own.
struct StepShape {
  std::array<int64_t, 2> tokens = {};   // by TokenSet
  std::array<int64_t, 2> context = {};  // by TokenSet: one more than the largest position

  int64_t count(TokenSet which) const { return tokens[static_cast<size_t>(which)]; }
  int64_t longest(TokenSet which) const { return context[static_cast<size_t>(which)]; }
};

// Where a block meets the residual: its hyper-connection (none: it is added) and its input's norm.
struct Site {
  int64_t layer = 0;
  enum class Block : uint8_t { kAttention, kMoe } block = Block::kAttention;
};

// The weights of a site, and of the merge before the head.
struct HyperConnectionKeys {
  ModuleKey fn, base, scale;
};
HyperConnectionKeys HyperConnectionOf(const Site& site);
HyperConnectionKeys HeadHyperConnection();
ModuleKey NormOf(const Site& site);
// Whether the module is an `fn` of these: a matrix that is stored as it is, never quantized.
bool IsHyperConnectionMatrix(Module module);

// y = x W^T, rounded last. Where W [rows, columns] has fewer columns than x, these are groups: each
// of x's columns meets its part of W's rows (deepseek-v4.md §2.7).
struct Product {
  ModuleKey weight;
  Rows y;
  Rounding rounding = Rounding::kNone;
};

// How attention of a layer looks back: over a window, and, with a rate, over compressed entries.
struct AttentionLayer {
  int64_t layer = 0;
  AttentionKind kind = AttentionKind::kWindow;  // also says which rotary angles
  int64_t rate = 0;                             // tokens per entry; 0: window only
};

// Pools groups of `rate` tokens into entries and stores those that the step completes
// (deepseek-v4.md §2.5).
struct Compression {
  Rows kv, score;
  ModuleKey position_bias, norm;
  int64_t dim = 0;
  bool overlap = false;  // an entry pools the group before its own, too
};

class ModelOps {
 public:
  virtual ~ModelOps() = default;

  // Rows without content, until the enclosing RowsScope ends.
  virtual Rows Take(RowsName name, TokenSet tokens, int64_t columns) = 0;

  // Row ids[t] of the table in each of the streams.
  virtual void Embed(const ModuleKey& table, Rows streams, Rounding rounding) = 0;

  // Between two blocks: y, the output of the block at `left`, goes into the streams, and the input
  // x of the block at `entered` comes from them, mixed and normed (deepseek-v4.md §2.1). Either
  // may be missing, at the ends of the model. What the streams need to know between the two, the
  // device keeps.
  struct Boundary {
    Rows streams;
    std::optional<Site> left;
    Rows y;
    std::optional<Site> entered;
    Rows x;
    Rounding rounding = Rounding::kNone;
  };
  virtual void CrossBoundary(const Boundary& boundary) = 0;

  // Products of the same x.
  virtual void Project(Rows x, std::span<const Product> products) = 0;
  void Project(Rows x, const Product& product) { Project(x, {&product, 1}); }

  // Norms low_rank in place. Norms and rotates the window rows and stores them in the cache; then
  // the entries that are complete, and the indexer's keys of these.
  struct CacheRows {
    AttentionLayer attention;
    Rows window, low_rank;
    ModuleKey window_norm, low_rank_norm;
    std::optional<Compression> entries, index;
    Rounding rounding = Rounding::kNone;
  };
  virtual void Store(const CacheRows& rows) = 0;

  // The entries that each token attends to: the best by the indexer's score (deepseek-v4.md §2.6).
  struct Selection {
    AttentionLayer attention;
    Rows queries;  // rotated and rounded in place
    Rows weights;  // scaled in place
    Rows selected, count;
    Rounding rounding = Rounding::kNone;
  };
  virtual void Select(const Selection& selection) = 0;

  // Norms and rotates the queries in place; attention over window and entries (all that are
  // visible, or the selected ones); rotates back (deepseek-v4.md §2.4).
  struct Attention {
    AttentionLayer attention;
    Rows queries;
    std::optional<Selection> selection;
    ModuleKey sinks;
    Rows attended;
    Rounding rounding = Rounding::kNone;
  };
  virtual void Attend(const Attention& attention) = 0;

  // The experts of each token and their weights, by the layer's rule.
  struct Choice {
    int64_t layer = 0;
    Rows logits;
    Rows experts, weights;
  };
  virtual void Route(const Choice& choice) = 0;

  // y = round(routed experts of x + shared expert of x). Error: another rank failed.
  struct Experts {
    int64_t layer = 0;
    Rows x;
    Choice choice;
    Rows y;
    Rounding rounding = Rounding::kNone;
  };
  virtual Status RunExperts(const Experts& experts) = 0;

  // The same rows of the wanted tokens alone. Streams take along what the device keeps with them.
  virtual Rows KeepWanted(Rows all) = 0;

  // The streams merged and normed: what meets the head.
  virtual void MergeStreams(Rows streams, Rows x, Rounding rounding) = 0;

  // The product of x with the head: the step's result.
  virtual void Logits(Rows x, const ModuleKey& head) = 0;

  // For observers: what the rows hold now, row by row; int32 as numbers.
  virtual std::vector<float> Read(Rows rows) const = 0;

 private:
  friend class RowsScope;
  virtual void OpenScope() = 0;
  virtual void CloseScope() = 0;  // of the scope opened last
};

// Rows taken inside are given back at its end.
class RowsScope {
 public:
  explicit RowsScope(ModelOps& ops) : ops_(ops) { ops.OpenScope(); }
  ~RowsScope() { ops_.CloseScope(); }
  RowsScope(const RowsScope&) = delete;
  RowsScope& operator=(const RowsScope&) = delete;

 private:
  ModelOps& ops_;
};

}  // namespace halfbyte
