#include <cstring>

#include "cases/numeric_cases.h"
#include "device/context.h"
#include "kernels/attention/attention.h"
#include "kernels/compressor/compressor.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/kv_row/kv_row.h"
#include "kernels/rope/rope.h"

namespace halfbyte {
namespace {

// One sequence's rows in one page.
struct OnePage {
  KvRow layout;
  std::vector<std::byte> bytes;
  int32_t table[1] = {0};

  OnePage(int64_t head_dim, int64_t rope_dim, int64_t rows)
      : layout{KvFormat::kF32, head_dim, rope_dim},
        bytes(static_cast<size_t>(rows * layout.bytes())) {}
  PagedRows rows() {
    return {bytes.data(), table, static_cast<int64_t>(bytes.size()) / layout.bytes(),
            layout.bytes()};
  }
  std::vector<float> Row(int64_t i) {
    std::vector<float> row(static_cast<size_t>(layout.head_dim));
    DecodeKvRow(layout, rows().row(i), row.data());
    return row;
  }
};

// A compressor's state and entries while tokens arrive in chunks.
struct CompressorRun {
  Compressor compressor;
  std::vector<float> bias;
  std::vector<float> norm;
  std::vector<float> ring;
  OnePage entries;
  int64_t ring_rows;

  CompressorRun(int64_t rate, bool overlap, int64_t dim, int64_t tokens,
                std::span<const double> frequencies)
      : entries(dim, 2 * static_cast<int64_t>(frequencies.size()), tokens / rate + 1),
        ring_rows(tokens + 2 * rate) {
    compressor.rate = rate;
    compressor.overlap = overlap;
    compressor.dim = dim;
    compressor.rope_frequencies = frequencies;
    bias.assign(static_cast<size_t>(rate * compressor.channels()), 0);
    norm.assign(static_cast<size_t>(dim), 1);
    ring.assign(static_cast<size_t>(ring_rows * 2 * compressor.channels()), 0);
    compressor.position_bias = bias.data();
    compressor.norm = norm.data();
  }

  CompressorRing Ring() { return {ring.data(), ring_rows}; }

  // kv [tokens, channels]; all gate scores equal.
  void Add(std::vector<float> kv, int64_t position) {
    const auto tokens = static_cast<int64_t>(kv.size()) / compressor.channels();
    const std::vector<float> score(kv.size(), 0.25f);
    CompressorSequence sequence;
    sequence.count = tokens;
    sequence.position = position;
    sequence.ring = Ring();
    sequence.entries = entries.rows();
    Compress(Context(Pool()), compressor, {&sequence, 1},
             {kv.data(), tokens, compressor.channels()},
             {score.data(), tokens, compressor.channels()}, Rounding::kNone, entries.layout);
  }
};

void CompressorRatio4(const Json& inputs, const Json& expected) {
  const std::vector<float> previous = FloatsOf(inputs["previous_half"]);
  const std::vector<float> current = FloatsOf(inputs["current_half"]);
  const auto tokens = static_cast<int64_t>(previous.size());
  std::vector<int64_t> chunks = {tokens};
  if (inputs.contains("chunks")) chunks = IntsOf(inputs["chunks"]);
  CompressorRun run(4, /*overlap=*/true, inputs["head_dim"].get<int64_t>(), tokens, {});
  size_t next = 0;
  for (const int64_t count : chunks) {
    const auto position = static_cast<int64_t>(next);
    std::vector<float> kv;
    for (int64_t i = 0; i < count; ++i, ++next) {
      kv.push_back(previous[next]);
      kv.push_back(current[next]);
    }
    run.Add(kv, position);
  }
  ASSERT_EQ(static_cast<int64_t>(next), tokens);
  for (size_t entry = 0; entry < expected["entries"].size(); ++entry) {
    float pooled = -1;
    PoolEntryReference(run.compressor, run.Ring(), static_cast<int64_t>(entry), &pooled);
    ExpectRelative(pooled, NumberOf(expected["entries"][entry]), 1e-6);
  }
}

void CompressedEntryCount(const Json& inputs, const Json& expected) {
  const std::vector<int64_t> lengths = IntsOf(inputs["lengths"]);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t last = lengths[i] - 1;
    EXPECT_EQ(VisibleEntries(last, 4), expected["ratio4"][i].get<int64_t>()) << lengths[i];
    EXPECT_EQ(VisibleEntries(last, 128), expected["ratio128"][i].get<int64_t>()) << lengths[i];
  }
}

void VisibleEntriesCase(const Json& inputs, const Json& expected) {
  const std::vector<int64_t> positions = IntsOf(inputs["positions"]);
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(VisibleEntries(positions[i], 4), expected["ratio4"][i].get<int64_t>());
    EXPECT_EQ(VisibleEntries(positions[i], 128), expected["ratio128"][i].get<int64_t>());
  }
}

// Read off the angle of a stored entry whose vector was (1, 0) before rotation.
void CompressedEntryPosition(const Json& inputs, const Json& expected) {
  const double frequency[] = {1e-3};
  for (size_t i = 0; i < inputs["entries"].size(); ++i) {
    const auto entry = inputs["entries"][i][0].get<int64_t>();
    const auto rate = inputs["entries"][i][1].get<int64_t>();
    const int64_t tokens = (entry + 1) * rate;
    CompressorRun run(rate, /*overlap=*/rate == 4, /*dim=*/2, tokens, frequency);
    std::vector<float> kv;
    for (int64_t n = 0; n < tokens * run.compressor.channels(); ++n) {
      kv.push_back(n % 2 == 0 ? 1.0f : 0.0f);
    }
    run.Add(kv, 0);
    const std::vector<float> row = run.entries.Row(entry);
    const double position = std::atan2(row[1], row[0]) / frequency[0];
    EXPECT_EQ(std::llround(position), expected["positions"][i].get<int64_t>()) << position;
  }
}

void RopeFrequency(const Json& inputs, const Json& expected) {
  std::optional<Yarn> yarn;
  if (!inputs["yarn"].is_null()) {
    yarn = Yarn{.factor = NumberOf(inputs["yarn"]["factor"]),
                .original_max_position = NumberOf(inputs["yarn"]["original_positions"]),
                .beta_fast = NumberOf(inputs["yarn"]["beta_fast"]),
                .beta_slow = NumberOf(inputs["yarn"]["beta_slow"])};
  }
  const std::vector<double> frequencies =
      RopeFrequencies(NumberOf(inputs["theta"]), inputs["rotary_dims"].get<int64_t>(), yarn);
  ExpectRelative(frequencies[inputs["pair"].get<size_t>()], NumberOf(expected["radians_per_token"]),
                 1e-6);
}

// Two positions with keys (= values) 1 and 0 and a query that scores them as told, in one
// dimension.
void SoftmaxFirst(const Json& inputs, const Json& expected) {
  ASSERT_EQ(inputs["scores"], Json::array({2, 0}));
  const float keys[] = {1, 0};
  const float query[] = {0, 2};  // of the first position, which is not looked at, and the second
  const float no_sink = -std::numeric_limits<float>::infinity();
  OnePage window(1, 0, 2);
  AttentionSequence sequence;
  sequence.count = 2;
  sequence.window = window.rows();
  for (int64_t i = 0; i < 2; ++i) EncodeKvRow(window.layout, keys + i, window.rows().row(i));
  AttentionShape shape;
  shape.heads = 1;
  shape.row = window.layout;
  shape.sinks = &no_sink;
  float out[2] = {};
  Attention(Context(Pool()), shape, {&sequence, 1}, {}, {query, 2, 1}, Rounding::kNone,
            {out, 2, 1});
  ExpectRelative(out[1], NumberOf(expected["probability"]), 1e-6);
}

// How many rows the query of the last of `tokens` tokens attends to: all keys score alike, and only
// the newest has a value, 1, so the result is one divided by their number.
int64_t RowsAttendedTo(int64_t tokens, int64_t window_tokens, int64_t rate) {
  OnePage window(1, 0, tokens);
  OnePage compressed(1, 0, tokens);
  const float one = 1;
  EncodeKvRow(window.layout, &one, window.rows().row(tokens - 1));
  AttentionSequence sequence;
  sequence.count = 1;
  sequence.position = tokens - 1;
  sequence.window = window.rows();
  sequence.compressed = compressed.rows();
  const float no_sink = -std::numeric_limits<float>::infinity();
  AttentionShape shape;
  shape.heads = 1;
  shape.window = window_tokens;
  shape.rate = rate;
  shape.row = window.layout;
  shape.sinks = &no_sink;
  const float query = 0;
  float out = 0;
  Attention(Context(Pool()), shape, {&sequence, 1}, {}, {&query, 1, 1}, Rounding::kNone,
            {&out, 1, 1});
  return std::llround(1 / out);
}

void KvRows(const Json& inputs, const Json& expected) {
  const auto tokens = inputs["tokens"].get<int64_t>();
  const auto window = inputs["window"].get<int64_t>();
  const int64_t window_rows = RowsAttendedTo(tokens, window, 0);
  EXPECT_EQ(window_rows, expected["window_rows"].get<int64_t>());
  EXPECT_EQ(RowsAttendedTo(tokens, window, 4) - window_rows,
            expected["ratio4_rows"].get<int64_t>());
  EXPECT_EQ(RowsAttendedTo(tokens, window, 128) - window_rows,
            expected["ratio128_rows"].get<int64_t>());
}

void HcMixingMatrix(const Json& inputs, const Json& expected) {
  const int streams = static_cast<int>(inputs["logits"].size());
  const auto n = static_cast<size_t>(streams);
  std::vector<float> logits;
  for (const Json& row : inputs["logits"]) {
    for (const Json& value : row) logits.push_back(FloatOf(value));
  }
  std::vector<float> comb(n * n, -1.0f);
  SinkhornMix(logits.data(), streams, inputs["iterations"].get<int>(), FloatOf(inputs["eps"]),
              comb.data());
  for (size_t r = 0; r < n; ++r) {
    double row_sum = 0;
    double column_sum = 0;
    for (size_t c = 0; c < n; ++c) {
      row_sum += comb[r * n + c];
      column_sum += comb[c * n + r];
      if (expected.contains("rows")) {
        EXPECT_NEAR(comb[r * n + c], NumberOf(expected["rows"][r][c]), 2e-6);
      }
    }
    if (expected.contains("row_sums")) {
      EXPECT_NEAR(row_sum, NumberOf(expected["row_sums"][r]), 2e-6);
    }
    if (expected.contains("column_sums")) {
      EXPECT_NEAR(column_sum, NumberOf(expected["column_sums"][r]), 2e-6);
    }
  }
}

void HcPostCase(const Json& inputs, const Json& expected) {
  ExpectRelative(PostWeight(FloatOf(inputs["logit"])), NumberOf(expected["value"]), 1e-6);
}

}  // namespace

void AddModelCases(CaseHandlers& handlers) {
  handlers["compressor_ratio4"] = CompressorRatio4;
  handlers["compressed_entry_count"] = CompressedEntryCount;
  handlers["visible_entries"] = VisibleEntriesCase;
  handlers["compressed_entry_position"] = CompressedEntryPosition;
  handlers["rope_frequency"] = RopeFrequency;
  handlers["softmax_first"] = SoftmaxFirst;
  handlers["kv_rows"] = KvRows;
  handlers["hc_mixing_matrix"] = HcMixingMatrix;
  handlers["hc_post"] = HcPostCase;
}

}  // namespace halfbyte
