#include "model/synthetic_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "checkpoint/inventory.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/nvfp4_block.h"
#include "numerics/philox.h"

namespace halfbyte {
namespace {

// What of a weight is drawn; part of Philox's counter.
enum class Drawn : uint32_t { kElements, kScales, kVector, kTable };

// Words of random bits become numbers: (word & mask) + offset.
struct Pattern {
  uint32_t mask;
  uint32_t offset;
};

constexpr uint32_t Bytes(uint32_t byte) { return byte * 0x01010101u; }
constexpr uint32_t Halves(uint32_t half) { return half * 0x00010001u; }

// Numbers whose exponents are the lowest one or the three above it, and whose mantissas are
// anything: their root mean square over 2^lowest is the root of (1 + 4 + 16 + 64) / 4 * 7 / 3.
constexpr double kSpread = 7.04;

// How a matrix whose elements have a root mean square near `size` is stored.
struct Recipe {
  StoredFormat format;
  Pattern elements;
  Pattern scales = {};
  float global_scale = 1;
};

Recipe NumbersOf(double size) {
  const auto exponent = static_cast<uint32_t>(127 + std::lround(std::log2(size / kSpread)));
  return {StoredFormat::kF32, {0x81ff'ffffu, exponent << 23}};
}

Recipe Bf16Of(double size) {
  const auto exponent = static_cast<uint32_t>(127 + std::lround(std::log2(size / kSpread)));
  return {StoredFormat::kBf16, {Halves(0x81ff), Halves(exponent << 7)}};
}

Recipe Fp8Of(double size) {
  // Elements are uniform up to E4M3's largest number; two neighbouring powers of two scale them.
  const double unscaled = kE4m3Max / std::sqrt(3.0) * std::sqrt(2.5);
  const auto exponent = static_cast<uint32_t>(127 + std::lround(std::log2(size / unscaled)));
  return {StoredFormat::kFp8Block, {}, {Bytes(0x01), Bytes(exponent)}};
}

Recipe Nvfp4Of(double size) {
  double codes = 0, scales = 0;
  for (uint8_t code = 0; code < 16; ++code) codes += std::pow(E2m1ToFloat(code), 2) / 16;
  for (uint8_t i = 0; i < 16; ++i) {  // 32 to 120
    scales += std::pow(E4m3ToFloat(static_cast<uint8_t>(0x60 + i)), 2) / 16;
  }
  return {StoredFormat::kModelOptNvfp4,
          {0xffff'ffffu, 0},
          {Bytes(0x0f), Bytes(0x60)},
          static_cast<float>(size / std::sqrt(codes * scales))};
}

bool IsFp8(Module module) {
  switch (module) {
    case Module::kQA:
    case Module::kQB:
    case Module::kKv:
    case Module::kOA:
    case Module::kOB:
    case Module::kIndexerQB:
      return true;
    default:
      return IsSharedExpert(module);
  }
}

Recipe RecipeOf(Module module, int64_t columns) {
  // Products of rows near 1 stay near 1.
  const double size = 1 / std::sqrt(static_cast<double>(columns));
  if (IsRoutedExpert(module)) return Nvfp4Of(size);
  if (IsFp8(module)) return Fp8Of(size);
  if (!IsMatrix(module)) return NumbersOf(size);
  return Bf16Of(module == Module::kEmbed ? 1 : size);
}

// Vectors are uniform around a middle.
struct Interval {
  float middle;
  float reach;
};

Interval IntervalOf(Module module) {
  switch (module) {
    case Module::kHcHeadScale:
    case Module::kHcAttentionScale:
    case Module::kHcFfnScale:
      return {1, 0.5f};
    case Module::kHcHeadBase:
    case Module::kHcAttentionBase:
    case Module::kHcFfnBase:
    case Module::kCompressorApe:
    case Module::kIndexerApe:
      return {0, 0.5f};
    case Module::kAttentionSink:
      return {0, 1};
    case Module::kRouterBias:
      return {0, 0.05f};
    default:  // norms
      return {1, 0.25f};
  }
}

std::array<uint32_t, 4> Draw(uint64_t key, Drawn what, int64_t block) {
  return Philox4x32(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                          static_cast<uint32_t>(what), 0});
}

void Fill(ThreadPool& pool, uint64_t key, Drawn what, const Pattern& pattern,
          std::span<std::byte> bytes) {
  constexpr int64_t kBlock = 16, kGrain = 4096;
  const int64_t size = std::ssize(bytes);
  pool.ParallelFor((size + kBlock - 1) / kBlock, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      std::array<uint32_t, 4> words = Draw(key, what, b);
      for (uint32_t& word : words) word = (word & pattern.mask) + pattern.offset;
      std::memcpy(bytes.data() + b * kBlock, words.data(),
                  static_cast<size_t>(std::min(kBlock, size - b * kBlock)));
    }
  });
}

// E4M3 numbers of uniform ones, from 16 bits each: small numbers, and the subnormal ones among
// them, are as rare as in trained weights.
void FillE4m3(ThreadPool& pool, uint64_t key, std::span<std::byte> bytes) {
  static const auto kNumbers = [] {
    std::array<std::byte, 1 << 16> numbers;
    for (int i = 0; i < 1 << 16; ++i) {
      const float uniform = (static_cast<float>(i) + 0.5f) * 0x1p-15f - 1;
      numbers[static_cast<size_t>(i)] = std::byte{E4m3FromFloat(uniform * kE4m3Max)};
    }
    return numbers;
  }();
  constexpr int64_t kBlock = 8, kGrain = 4096;
  const int64_t size = std::ssize(bytes);
  pool.ParallelFor((size + kBlock - 1) / kBlock, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const std::array<uint32_t, 4> words = Draw(key, Drawn::kElements, b);
      for (int64_t i = b * kBlock; i < std::min((b + 1) * kBlock, size); ++i) {
        const uint32_t word = words[static_cast<size_t>(i % kBlock / 2)];
        bytes[static_cast<size_t>(i)] = kNumbers[word >> i % 2 * 16 & 0xffff];
      }
    }
  });
}

}  // namespace

Result<std::unique_ptr<SyntheticWeights>> SyntheticWeights::Create(ModelConfig config,
                                                                   ThreadPool& pool,
                                                                   uint64_t seed) {
  for (const auto& [name, size] : {std::pair{"hidden_size", config.hidden_size},
                                   {"moe_intermediate_size", config.expert_size}}) {
    if (size % kNvfp4Block == 0) continue;
    return MakeError("{} {} is no multiple of {}, as experts in NVFP4 need it", name, size,
                     kNvfp4Block);
  }
  return std::unique_ptr<SyntheticWeights>(new SyntheticWeights(std::move(config), pool, seed));
}

uint64_t SyntheticWeights::KeyOf(const ModuleKey& key) const {
  const uint64_t name = uint64_t{static_cast<uint32_t>(key.expert + 1)} << 40 |
                        uint64_t{static_cast<uint32_t>(key.layer)} << 16 |
                        uint64_t{static_cast<uint8_t>(key.module)} << 8 |
                        static_cast<uint64_t>(key.scope);
  return name ^ seed_ * 0x9e37'79b9'7f4a'7c15u;
}

Result<StoredWeight> SyntheticWeights::Unread(const ModuleKey& key) const {
  const auto shape = ExpectedShape(config_, key);
  if (!shape || shape->size() != 2) return MakeError("{}: the model has none", Describe(key));
  const Recipe recipe = RecipeOf(key.module, (*shape)[1]);
  StoredWeight weight{.format = recipe.format, .name = Describe(key)};
  WeightMatrix& w = weight.matrix;
  w.rows = (*shape)[0];
  w.columns = (*shape)[1];
  switch (recipe.format) {
    case StoredFormat::kModelOptNvfp4:
      w.format = WeightFormat::kNvfp4;
      w.global_scale = GlobalScale(recipe.global_scale);
      weight.input_scale = GlobalScale::FromAmax(8);
      break;
    case StoredFormat::kFp8Block:
      w.format = WeightFormat::kFp8;
      w.scale_dtype = DType::kF8E8m0;
      w.scale_block_rows = w.scale_block_columns = 128;
      break;
    default:
      w.format = recipe.format == StoredFormat::kBf16 ? WeightFormat::kBf16 : WeightFormat::kF32;
  }
  return weight;
}

Result<StoredWeight> SyntheticWeights::Stored(const ModuleKey& key) const {
  HB_ASSIGN_OR_RETURN(StoredWeight weight, Unread(key));
  WeightMatrix& w = weight.matrix;
  const auto bytes = static_cast<size_t>(w.bytes());
  const auto element_bytes = static_cast<size_t>(w.rows * w.row_bytes());
  HB_ASSIGN_OR_RETURN(ZeroedMemory memory,
                      ZeroedMemory::Allocate(w.bytes(), "synthetic weights", Pages::kHuge));
  const std::span<std::byte> all(memory.data(), bytes);
  const Recipe recipe = RecipeOf(key.module, w.columns);
  if (w.format == WeightFormat::kFp8) {
    FillE4m3(pool_, KeyOf(key), all.first(element_bytes));
  } else {
    Fill(pool_, KeyOf(key), Drawn::kElements, recipe.elements, all.first(element_bytes));
  }
  Fill(pool_, KeyOf(key), Drawn::kScales, recipe.scales, all.subspan(element_bytes));
  w.data = all.data();
  if (bytes > element_bytes) w.scales = all.data() + element_bytes;
  const int64_t number = next_++;
  made_[number] = std::move(memory);
  weight.release = [this, number] { made_.erase(number); };
  return weight;
}

Result<std::vector<float>> SyntheticWeights::Vector(const ModuleKey& key, int64_t count) const {
  const Interval interval = IntervalOf(key.module);
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = Draw(KeyOf(key), Drawn::kVector, i / 4)[static_cast<size_t>(i % 4)];
    const float x = static_cast<float>(word >> 8) * 0x1p-23f - 1;  // in [-1, 1)
    values[static_cast<size_t>(i)] = RoundToBf16(interval.middle + x * interval.reach);
  }
  return values;
}

Result<std::vector<int32_t>> SyntheticWeights::RouterTable(const ModuleKey& key) const {
  const int64_t experts = config_.routed_experts, top_k = config_.experts_per_token;
  std::vector<int32_t> table;
  table.reserve(static_cast<size_t>(config_.vocab_size * top_k));
  for (int64_t block = 0; std::ssize(table) < config_.vocab_size * top_k; ++block) {
    for (const uint32_t word : Draw(KeyOf(key), Drawn::kTable, block)) {
      const auto expert = static_cast<int32_t>(word % static_cast<uint32_t>(experts));
      const auto row = table.end() - std::ssize(table) % top_k;
      if (std::find(row, table.end(), expert) == table.end()) table.push_back(expert);
    }
  }
  table.resize(static_cast<size_t>(config_.vocab_size * top_k));
  return table;
}

std::vector<int64_t> SyntheticWeights::LayerBytes() const {
  std::vector<int64_t> bytes(static_cast<size_t>(config_.layer_count()) + 1);
  for (const ModuleKey& key : RequiredModules(config_)) {
    int64_t& sum =
        key.scope == Scope::kGlobal ? bytes.back() : bytes[static_cast<size_t>(key.layer)];
    const auto weight = Unread(key);
    sum += weight ? weight->matrix.bytes()
                  : ElementCount(*ExpectedShape(config_, key)) * int64_t{sizeof(float)};
  }
  return bytes;
}

}  // namespace halfbyte
