#include "kernels/attention/attention_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/device_step_test_tables.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr int64_t kWindow = 128, kWindowPage = 64;
constexpr float kEps = 1e-6f;
// Most of a bf16 number's unit in the last place, relative to it: how far apart two roundings of
// nearly the same number may be.
constexpr double kUlp = 0x1p-7;

struct Shape {
  int64_t heads, head_dim, rope_dim, rate;
};
constexpr Shape kFlash{64, 512, 64, 4}, kFlash128{64, 512, 64, 128}, kFlashWindow{64, 512, 64, 0},
    kPro{128, 512, 64, 4}, kBundled{8, 128, 32, 4}, kBundled128{8, 128, 32, 128};

struct Token {
  int32_t sequence;
  int32_t position;  // -1: padding
  std::vector<int32_t> selected;
};

// Sequences with rows of random content for all positions below `length`, and tokens' queries by
// sequence and position.
class Problem {
 public:
  Problem(const Shape& shape, int64_t sequences, int64_t length, uint32_t seed, double size = 1)
      : shape_(shape),
        layout_{KvFormat::kFp8, shape.head_dim, shape.rope_dim},
        length_(length),
        seed_(seed),
        pages_of_sequence_(length / kWindowPage + 1),
        entries_per_page_(shape.rate == 128 ? 2 : 64),
        pages_(sequences * pages_of_sequence_ + 3),
        table_(static_cast<size_t>(sequences * pages_of_sequence_)),
        starts_(static_cast<size_t>(sequences)),
        window_(Pool(kWindowPage)),
        entries_(Pool(entries_per_page_)),
        sinks_(RandomNormal(shape.heads, seed + 1)),
        numbers_(RandomNormal(columns() + kNumbers, seed + 2, 1, Rounding::kBf16)),
        rope_(shape.rope_dim, length + 1) {
    std::vector<int32_t> ids(static_cast<size_t>(pages_));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    std::copy_n(ids.begin(), table_.size(), table_.begin());
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t p = 0; p < length; ++p) Store(Window(s), p, size, s * 100000 + p);
      for (int64_t e = 0; e < VisibleEntries(length - 1, shape.rate); ++e) {
        Store(Entries(s), e, size, s * 100000 + 50000 + e);
      }
    }
  }

  std::vector<float>& sinks() { return sinks_; }
  std::vector<int32_t>& starts() { return starts_; }
  int64_t columns() const { return shape_.heads * shape_.head_dim; }
  void PoisonWindow(int64_t sequence, int64_t row) {
    std::memset(Window(sequence).row(row), 0xff, static_cast<size_t>(layout_.bytes()));
  }
  void PoisonEntry(int64_t sequence, int64_t row) {
    std::memset(Entries(sequence).row(row), 0xff, static_cast<size_t>(layout_.bytes()));
  }

  std::vector<float> Query(const Token& token) const {
    const auto from = numbers_.begin() + (token.sequence * 7919 + token.position + 1) % kNumbers;
    return {from, from + columns()};
  }

  // [tokens, columns] of the GPU.
  std::vector<Bf16> Run(const std::vector<Token>& tokens, cudaStream_t stream, bool selected,
                        int64_t spare_keys = 0) const {
    std::vector<int32_t> positions, sequences, chosen, counts;
    std::vector<Bf16> queries;
    int64_t stride = 1, most = 1;
    for (const Token& t : tokens) stride = std::max(stride, std::ssize(t.selected));
    for (const Token& t : tokens) {
      positions.push_back(t.position);
      sequences.push_back(t.position < 0 ? 0 : t.sequence);
      chosen.insert(chosen.end(), t.selected.begin(), t.selected.end());
      chosen.resize(positions.size() * static_cast<size_t>(stride), -1);
      counts.push_back(static_cast<int32_t>(t.selected.size()));
      const int64_t entries =
          selected ? std::ssize(t.selected) : VisibleEntries(t.position, shape_.rate);
      most = std::max(most, std::min<int64_t>(kWindow, t.position + 1) + entries);
      for (const float x : Query(t)) {
        queries.push_back(t.position < 0 ? Bf16{0x7fc0} : ToBf16(x));
      }
    }
    most += spare_keys;
    const auto count = std::ssize(tokens);
    const DeviceArray<int32_t> d_positions(positions), d_sequences(sequences), d_chosen(chosen),
        d_counts(counts), d_table(table_), d_starts(starts_);
    const DeviceArray<Bf16> d_queries(queries);
    const DeviceArray<float> d_sinks(sinks_);
    const DeviceRows window = Rows(kWindowPage), entries = Rows(entries_per_page_);
    const DeviceArray<std::byte> d_window(InTwoParts(window_, window, layout_.scale_count()));
    const DeviceArray<std::byte> d_entries(InTwoParts(entries_, entries, layout_.scale_count()));
    DeviceArray<Bf16> attended(static_cast<size_t>(count * columns()));
    DeviceArray<std::byte> scratch(
        static_cast<size_t>(AttentionScratchBytes(count, shape_.heads, most)));
    AttentionArguments a{.tokens = {.count = count,
                                    .positions = d_positions.data(),
                                    .sequences = d_sequences.data()},
                         .sequences = {.count = std::ssize(starts_),
                                       .replay_starts = d_starts.data(),
                                       .context_blocks = d_table.data(),
                                       .context_stride = pages_of_sequence_,
                                       .window_pages = d_table.data(),
                                       .window_stride = pages_of_sequence_},
                         .rope = rope_.device(),
                         .queries = d_queries.data(),
                         .heads = shape_.heads,
                         .head_dim = shape_.head_dim,
                         .norm_eps = kEps,
                         .window = kWindow,
                         .rate = shape_.rate,
                         .window_rows = window,
                         .entry_rows = entries,
                         .sinks = d_sinks.data(),
                         .max_keys = most,
                         .attended = attended.data(),
                         .scratch = scratch.data()};
    a.window_rows.pool = d_window.data();
    a.entry_rows.pool = d_entries.data();
    if (selected) {
      a.selected = d_chosen.data();
      a.selected_counts = d_counts.data();
      a.selected_stride = stride;
    }
    EXPECT_EQ(LaunchAttention(a, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    scratch.Read();  // its guards
    return attended.Read();
  }

  // One head of a token in double; how far the GPU may be from it.
  void Reference(const Token& token, int64_t head, bool selected, std::vector<float>* out,
                 std::vector<double>* bounds) const {
    const int64_t dim = shape_.head_dim, pairs = shape_.rope_dim / 2;
    const std::vector<float> all = Query(token);
    std::vector<float> q(all.begin() + head * dim, all.begin() + (head + 1) * dim);
    RmsNormReference({q.data(), 1, dim}, nullptr, kEps, Rounding::kBf16, {q.data(), 1, dim});
    const float* cos = &rope_.angles.cos[static_cast<size_t>(token.position * pairs)];
    const float* sin = &rope_.angles.sin[static_cast<size_t>(token.position * pairs)];
    RotatePairs(cos, sin, pairs, false, Rounding::kBf16, q.data() + dim - 2 * pairs);

    std::vector<std::vector<float>> keys;
    const auto add = [&](const PagedRows& rows, int64_t row) {
      keys.emplace_back(static_cast<size_t>(dim));
      DecodeKvRow(layout_, rows.row(row), keys.back().data());
    };
    const int64_t first = std::max<int64_t>(starts_[static_cast<size_t>(token.sequence)],
                                            token.position + 1 - kWindow);
    for (int64_t p = first; p <= token.position; ++p) add(Window(token.sequence), p);
    if (selected) {
      for (const int32_t e : token.selected) add(Entries(token.sequence), e);
    } else {
      const int64_t entries = VisibleEntries(token.position, shape_.rate);
      for (int64_t e = 0; e < entries; ++e) add(Entries(token.sequence), e);
    }
    const double log2e = 1.4426950408889634, scale = log2e / std::sqrt(static_cast<double>(dim));
    std::vector<double> t, error;
    const double sink = double{sinks_[static_cast<size_t>(head)]} * log2e;
    double most = sink;
    for (const auto& key : keys) {
      double dot = 0, magnitude = 0;
      for (size_t c = 0; c < key.size(); ++c) {
        dot += double{q[c]} * double{key[c]};
        magnitude += std::abs(double{q[c]} * double{key[c]});
      }
      t.push_back(dot * scale);
      // Relative error of the weight: of the chain, of t's own roundings, of exp2.
      error.push_back(2e-10 * static_cast<double>(dim) * magnitude * scale +
                      3 * 0x1p-24 * std::abs(dot * scale) + 0x1p-21);
      most = std::max(most, dot * scale);
    }
    most = std::ceil(most);
    double sum = RoundToBf16(static_cast<float>(std::exp2(sink - most))), sum_error = 0;
    std::vector<double> weights, weight_errors;
    const auto rounded = [](double w) { return double{RoundToBf16(static_cast<float>(w))}; };
    for (size_t j = 0; j < keys.size(); ++j) {
      const double w = std::exp2(t[j] - most);
      weights.push_back(rounded(w));
      weight_errors.push_back(rounded(w * (1 + error[j])) - rounded(w * (1 - error[j])) + 0x1p-60);
      sum += weights.back();
      sum_error += weight_errors.back();
    }
    const auto count = static_cast<double>(keys.size());
    out->assign(static_cast<size_t>(dim), 0);
    bounds->assign(static_cast<size_t>(dim), 0);
    for (size_t c = 0; c < out->size(); ++c) {
      double value = 0, magnitude = 0, moved = 0;
      for (size_t j = 0; j < keys.size(); ++j) {
        value += weights[j] * double{keys[j][c]};
        magnitude += weights[j] * std::abs(double{keys[j][c]});
        moved += weight_errors[j] * std::abs(double{keys[j][c]});
      }
      (*out)[c] = RoundToBf16(static_cast<float>(value / sum));
      (*bounds)[c] = (moved + 2e-10 * (count + 64) * magnitude) / sum +
                     std::abs(value / sum) * (sum_error / sum + count * 0x1p-24 + 0x1p-21 + kUlp);
    }
    const size_t turned = static_cast<size_t>(dim - 2 * pairs);
    RotatePairs(cos, sin, pairs, true, Rounding::kBf16, out->data() + turned);
    for (size_t c = turned; c < out->size(); c += 2) {
      const double both = (*bounds)[c] + (*bounds)[c + 1];
      for (const size_t i : {c, c + 1}) {
        (*bounds)[i] = both + kUlp * std::abs(double{(*out)[i]});
      }
    }
  }

 private:
  static constexpr int64_t kNumbers = 40000;  // queries start at different ones

  std::vector<std::byte> Pool(int64_t rows) const {
    return std::vector<std::byte>(static_cast<size_t>(pages_ * rows * layout_.bytes()),
                                  std::byte{0xff});
  }
  PagedRows In(const std::vector<std::byte>& pool, int64_t sequence, int64_t per_page) const {
    return {const_cast<std::byte*>(pool.data()), table_.data() + sequence * pages_of_sequence_,
            per_page, layout_.bytes()};
  }
  PagedRows Window(int64_t sequence) const { return In(window_, sequence, kWindowPage); }
  PagedRows Entries(int64_t sequence) const { return In(entries_, sequence, entries_per_page_); }
  DeviceRows Rows(int64_t per_page) const {
    const int64_t main = layout_.fp8_dim() + 2 * layout_.rope_dim;
    return {nullptr, per_page, main, layout_.bytes() - main};
  }
  void Store(const PagedRows& rows, int64_t row, double size, int64_t seed) const {
    const auto values =
        RandomNormal(shape_.head_dim, seed_ + static_cast<uint32_t>(seed) * 7 + 3, size);
    EncodeKvRow(layout_, values.data(), rows.row(row));
  }

  Shape shape_;
  KvRow layout_;
  int64_t length_;
  uint32_t seed_;
  int64_t pages_of_sequence_, entries_per_page_, pages_;
  std::vector<int32_t> table_, starts_;
  std::vector<std::byte> window_, entries_;
  std::vector<float> sinks_, numbers_;
  TestRope rope_;
};

class AttentionCuda : public GpuTest {
 protected:
  // Against the definition in double: never beyond the bound, other bits in at most 2 %.
  void Check(const Problem& problem, const Shape& shape, const std::vector<Token>& tokens,
             const std::vector<Bf16>& got, bool selected, const char* what) {
    int64_t all = 0, other = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].position < 0) {
        for (int64_t c = 0; c < problem.columns(); ++c) {
          ASSERT_EQ(got[i * static_cast<size_t>(problem.columns()) + static_cast<size_t>(c)].bits,
                    0)
              << what << ": padding";
        }
        continue;
      }
      for (const int64_t head : {int64_t{0}, shape.heads / 3, shape.heads - 1}) {
        std::vector<float> want;
        std::vector<double> bounds;
        problem.Reference(tokens[i], head, selected, &want, &bounds);
        for (size_t c = 0; c < want.size(); ++c) {
          const size_t at = i * static_cast<size_t>(problem.columns()) +
                            static_cast<size_t>(head * shape.head_dim) + c;
          const float have = ToFloat(got[at]);
          ASSERT_LE(std::abs(double{have} - double{want[c]}), bounds[c])
              << what << ": token " << i << " at " << tokens[i].position << ", head " << head
              << ", channel " << c << ": got " << have << ", wanted " << want[c];
          ++all;
          other += have != want[c] ? 1 : 0;
        }
      }
    }
    std::printf("%s: %.3f %% of %ld results round otherwise\n", what,
                100.0 * static_cast<double>(other) / static_cast<double>(all), long{all});
    EXPECT_LE(other, all / 50) << what;
  }

  static std::vector<Token> At(const std::vector<int32_t>& positions, int32_t sequence = 0) {
    std::vector<Token> tokens;
    for (const int32_t position : positions) tokens.push_back({sequence, position, {}});
    return tokens;
  }

  static void SelectSome(std::vector<Token>& tokens, int64_t rate, int64_t most) {
    std::mt19937 random(9);
    for (Token& t : tokens) {
      std::vector<int32_t> all(static_cast<size_t>(VisibleEntries(t.position, rate)));
      std::iota(all.begin(), all.end(), 0);
      std::sample(all.begin(), all.end(), std::back_inserter(t.selected), most, random);
    }
  }

  std::vector<Bf16> InPieces(const Problem& problem, const std::vector<Token>& tokens, size_t size,
                             bool selected, int64_t spare_keys = 0) {
    std::vector<Bf16> all;
    for (size_t i = 0; i < tokens.size(); i += size) {
      const std::vector<Token> piece(
          tokens.begin() + static_cast<int64_t>(i),
          tokens.begin() + static_cast<int64_t>(std::min(tokens.size(), i + size)));
      const auto part = problem.Run(piece, stream.get(), selected, spare_keys);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  void ExpectSame(const Problem& problem, const std::vector<Bf16>& got,
                  const std::vector<Bf16>& want, const char* what) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const auto columns = static_cast<size_t>(problem.columns());
      ASSERT_EQ(got[i].bits, want[i].bits)
          << what << ": token " << i / columns << ", column " << i % columns;
    }
  }
};

TEST_F(AttentionCuda, IsTheDefinitionAtEveryBorder) {
  const std::vector<int32_t> positions{0,   1,   3,   4,   62,  63,  64,  65,  126,
                                       127, 128, 129, 191, 255, 256, 383, 400, 511};
  for (const Shape& shape : {kFlash, kFlash128, kFlashWindow, kPro, kBundled, kBundled128}) {
    const Problem problem(shape, 1, 512, 1);
    std::vector<Token> tokens = At(positions);
    tokens.insert(tokens.begin() + 5, {0, -1, {}});
    const std::vector<Bf16> few = InPieces(problem, tokens, 5, false);
    Check(problem, shape, tokens, few, false, "spread over the device");
    const std::vector<Token> many = [&] {
      std::vector<Token> more;
      for (int i = 0; i < 4; ++i) more.insert(more.end(), tokens.begin(), tokens.end());
      return more;
    }();
    const std::vector<Bf16> blocks = problem.Run(many, stream.get(), false);
    Check(problem, shape, tokens,
          {blocks.begin(), blocks.begin() + static_cast<int64_t>(few.size())}, false,
          "a block for a token");
  }
}

TEST_F(AttentionCuda, ATokensBitsDependOnNothingElse) {
  for (const Shape& shape : {kFlash, kPro, kBundled, kFlash128}) {
    const Problem problem(shape, 3, 1100, 2, shape.rate == 4 ? 3 : 1);
    for (const bool selected : {false, true}) {
      if (selected && shape.rate != 4) continue;
      std::vector<Token> tokens;
      for (int i = 0; i < 129; ++i) {
        tokens.push_back({i % 3, i < 60 ? 1000 + i / 3 : (i * 37) % 1100, {}});
      }
      if (selected) SelectSome(tokens, shape.rate, 200);
      const std::vector<Bf16> all = problem.Run(tokens, stream.get(), selected);
      ExpectSame(problem, problem.Run(tokens, stream.get(), selected), all, "again");
      for (const size_t size : {1, 7, 8, 33, 64}) {
        if (size == 1) {
          const std::vector<Token> some(tokens.begin() + 50, tokens.begin() + 70);
          const auto columns = problem.columns();
          ExpectSame(problem, InPieces(problem, some, 1, selected, 500),
                     {all.begin() + 50 * columns, all.begin() + 70 * columns}, "alone");
        } else {
          ExpectSame(problem, InPieces(problem, tokens, size, selected), all, "in pieces");
        }
      }
    }
  }
}

TEST_F(AttentionCuda, SelectionsReplaysAndExtremes) {
  for (const Shape& shape : {kFlash, kBundled}) {
    Problem problem(shape, 2, 700, 3);
    problem.starts()[1] = 300;
    for (int64_t row = 0; row < 300; ++row) problem.PoisonWindow(1, row);
    std::vector<Token> tokens = At({20, 500, 699});
    for (const Token& t : At({300, 301, 363, 427, 428, 600}, 1)) tokens.push_back(t);
    Check(problem, shape, tokens, InPieces(problem, tokens, 9, false), false, "replayed");
    SelectSome(tokens, shape.rate, 64);
    tokens[1].selected.clear();
    Check(problem, shape, tokens, InPieces(problem, tokens, 9, true), true, "selected");
    problem.sinks().assign(problem.sinks().size(), -INFINITY);
    Check(problem, shape, tokens, InPieces(problem, tokens, 9, true), true, "no sink");
    problem.sinks().assign(problem.sinks().size(), 3e4f);
    for (const Bf16 x : InPieces(problem, tokens, 9, true)) ASSERT_EQ(ToFloat(x), 0);
    for (const double size : {1e-3, 30.0, 1e5}) {
      const Problem extreme(shape, 1, 300, 4, size);
      const auto some = At({5, 130, 299});
      const auto few = InPieces(extreme, some, 3, false);
      for (const Bf16 x : few) ASSERT_TRUE(std::isfinite(ToFloat(x))) << size;
      if (size < 100) Check(extreme, shape, some, few, false, "sizes");
    }
  }
}

TEST_F(AttentionCuda, ANumberThatIsNoneReachesOnlyWhoSeesIt) {
  for (const Shape& shape : {kFlash, kBundled}) {
    Problem problem(shape, 2, 600, 5);
    problem.PoisonWindow(0, 450);
    problem.PoisonEntry(0, 120);  // of position 483
    std::vector<Token> tokens;
    for (int32_t i = 0; i < 60; ++i) tokens.push_back({i % 2, 440 + i, {}});
    for (const size_t size : {60, 6}) {
      const std::vector<Bf16> got = InPieces(problem, tokens, size, false);
      for (size_t i = 0; i < got.size(); ++i) {
        const Token& t = tokens[i / static_cast<size_t>(problem.columns())];
        ASSERT_EQ(std::isnan(ToFloat(got[i])), t.sequence == 0 && t.position >= 450) << i;
      }
    }
  }
}

TEST_F(AttentionCuda, RefusesWhatItDoesNotKnow) {
  AttentionArguments a{.heads = 64, .head_dim = 256, .window = 128, .max_keys = 1};
  EXPECT_EQ(LaunchAttention(a, stream.get()), cudaErrorInvalidValue);
  a.head_dim = 512;  // no rows, no angles
  EXPECT_EQ(LaunchAttention(a, stream.get()), cudaErrorInvalidValue);
  a.heads = 32;
  EXPECT_EQ(LaunchAttention(a, stream.get()), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace halfbyte
