#include "moe/moe_test_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "kernels/linear/linear.h"
#include "kernels/packed_linear/packed_linear.h"
#include "kernels/packed_linear/packed_test_weights.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"
#include "numerics/fp8_block.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

template <class T>
void Append(std::vector<std::byte>& bytes, T value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(T));
}

// x [rows, columns] in the format, data and then scales, in bytes that the caller keeps.
WeightMatrix Encode(const std::vector<float>& x, int64_t rows, int64_t columns, WeightFormat format,
                    std::vector<std::byte>& bytes) {
  WeightMatrix w{.format = format, .rows = rows, .columns = columns};
  std::vector<std::byte> scales;
  switch (format) {
    case WeightFormat::kF32:
      for (const float value : x) Append(bytes, value);
      break;
    case WeightFormat::kBf16:
      for (const float value : x) Append(bytes, ToBf16(value));
      break;
    case WeightFormat::kF16:
      // Bits of fp16 from an fp32 whose mantissa is cut: what matters is that it is some fp16.
      for (const float value : x) {
        const auto bits = std::bit_cast<uint32_t>(std::abs(value) < 0x1p-14f ? 0x1p-14f : value);
        Append(bytes, static_cast<uint16_t>(((bits >> 16) & 0x8000u) |
                                            (((bits & 0x7fffffffu) - (112u << 23)) >> 13)));
      }
      break;
    case WeightFormat::kFp8: {
      w.scale_dtype = DType::kF8E8m0;
      w.scale_block_rows = rows;
      w.scale_block_columns = columns;
      const uint8_t scale = Fp8BlockScale(BlockAmax(x.data(), static_cast<int>(x.size())));
      for (const float value : x) Append(bytes, Fp8Encode(value, scale));
      Append(scales, scale);
      break;
    }
    case WeightFormat::kNvfp4: {
      const GlobalScale global =
          GlobalScale::FromAmax(BlockAmax(x.data(), static_cast<int>(x.size())));
      w.global_scale = global;
      for (size_t i = 0; i < x.size(); i += kNvfp4Block) {
        const Nvfp4Block block = QuantizeNvfp4Block(&x[i], global);
        for (const uint8_t byte : block.codes) Append(bytes, byte);
        Append(scales, block.scale);
      }
      break;
    }
    case WeightFormat::kMxfp4:
      w.scale_dtype = DType::kF8E8m0;
      for (size_t i = 0; i < x.size(); i += kMxfp4Block) {
        const Mxfp4Block block = QuantizeMxfp4Block(&x[i]);
        for (const uint8_t byte : block.codes) Append(bytes, byte);
        Append(scales, block.scale);
      }
      break;
  }
  const size_t data_bytes = bytes.size();
  bytes.insert(bytes.end(), scales.begin(), scales.end());
  w.data = bytes.data();
  w.scales = scales.empty() ? nullptr : bytes.data() + data_bytes;
  return w;
}

struct Product {
  std::vector<float> sums;
  float alpha = 1;
};

// x as the plain packed kernel takes it; returns its global scale.
float PrepareOperand(const PackedKernel& kernel, const std::vector<float>& x,
                     const std::optional<GlobalScale>& static_scale, std::byte* operand) {
  const auto k = static_cast<int64_t>(x.size());
  if (kernel.arithmetic != PackedArithmetic::kW4a4) {
    PrepareRow(kernel, x.data(), k, operand);
    return 1;
  }
  const GlobalScale global =
      static_scale.value_or(GlobalScale::FromAmax(BlockAmax(x.data(), static_cast<int>(x.size()))));
  std::vector<uint8_t> codes, scales;
  for (size_t i = 0; i < x.size(); i += kNvfp4Block) {
    const Nvfp4Block block = QuantizeNvfp4Block(&x[i], global);
    codes.insert(codes.end(), std::begin(block.codes), std::end(block.codes));
    scales.push_back(block.scale);
  }
  PrepareNvfp4Row(codes.data(), scales.data(), k, operand);
  return global.value();
}

// One row times one matrix, by the plain reference of the kernel that the layer's header names.
Product RowTimes(const std::vector<float>& x, WeightMatrix w, const MoeParams& params,
                 const std::optional<GlobalScale>& static_scale) {
  Product product;
  product.sums.resize(static_cast<size_t>(w.rows));
  const MatrixView<float> y{product.sums.data(), 1, w.rows};
  const bool packs = PackedFormatOf(w).has_value() && params.arithmetic != Arithmetic::kRef;
  if (packs && (IsFourBitOnly(params.arithmetic) || params.round_activations)) {
    const OwnedPacked packed(w);
    const PackedKernel kernel = BestPackedKernel(
        PackedArithmeticOf(params.arithmetic, packed.matrix.format), CpuIsa::kScalar);
    std::vector<std::byte> operand(static_cast<size_t>(OperandRowBytes(kernel.format, w.columns)));
    product.alpha = PrepareOperand(kernel, x, static_scale, operand.data()) *
                    packed.matrix.global_scale.value();
    PackedLinearRange(kernel, packed.matrix, operand.data(), 0, w.rows, y);
  } else {
    product.alpha = w.global_scale.value();
    w.global_scale = GlobalScale(1.0f);
    LinearReference({x.data(), 1, w.columns}, w, y);
  }
  return product;
}

std::vector<float> SlotValue(const ExpertWeights& expert, const MoeParams& params,
                             const std::vector<float>& x, float weight) {
  const Product gate = RowTimes(x, expert.gate, params, params.gate_up_input_scale);
  const Product up = RowTimes(x, expert.up, params, params.gate_up_input_scale);
  std::vector<float> h(gate.sums.size());
  ThreadPool pool(1);
  SwigluRow(Context(pool, CpuIsa::kScalar), params.swiglu,
            {.gate = gate.sums.data(),
             .up = up.sums.data(),
             .h = h.data(),
             .n = params.intermediate,
             .alpha_gate = gate.alpha,
             .alpha_up = up.alpha,
             .weight = params.routing_weight == RoutingWeightPlacement::kBeforeDown ? weight : 1.0f,
             .rounding = params.round_activations ? Rounding::kBf16 : Rounding::kNone});
  Product value = RowTimes(h, expert.down, params, params.down_input_scale);
  for (float& v : value.sums) v *= value.alpha;
  return value.sums;
}

// The layer in double over weights given as fp32 matrices: gate, up, down of expert e at 3e, ....
std::vector<double> DoubleLayer(const TestLayer& layer, const TestInput& input,
                                const std::vector<std::vector<float>>& weights) {
  const TestShape& shape = input.shape;
  const auto product = [](const std::vector<double>& x, const std::vector<float>& w, int64_t rows) {
    std::vector<double> y(static_cast<size_t>(rows));
    for (size_t n = 0; n < y.size(); ++n) {
      for (size_t k = 0; k < x.size(); ++k) y[n] += x[k] * double{w[n * x.size() + k]};
    }
    return y;
  };
  std::vector<double> out(static_cast<size_t>(shape.tokens * shape.hidden), 0.0);
  for (int64_t s = 0; s < shape.tokens * shape.top_k; ++s) {
    const int64_t token = s / shape.top_k;
    const auto first = input.hidden.begin() + token * shape.hidden;
    const auto expert = static_cast<size_t>(input.ids[static_cast<size_t>(s)]);
    const std::vector<double> x(first, first + shape.hidden);
    std::vector<double> h = product(x, weights[3 * expert], shape.intermediate);
    const std::vector<double> up = product(x, weights[3 * expert + 1], shape.intermediate);
    for (size_t i = 0; i < h.size(); ++i) {
      layer.clamped += h[i] > 10;
      h[i] = SwigluReference({.limit = 10}, h[i], up[i]) *
             double{input.weights[static_cast<size_t>(s)]};
    }
    const std::vector<double> value = product(h, weights[3 * expert + 2], shape.hidden);
    for (size_t n = 0; n < value.size(); ++n) {
      out[static_cast<size_t>(token * shape.hidden) + n] += value[n];
    }
  }
  return out;
}

}  // namespace

TestInput::TestInput(const TestShape& s, uint32_t seed) : shape(s) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
  hidden.resize(static_cast<size_t>(s.tokens * s.hidden));
  for (float& x : hidden) x = RoundToBf16(normal(random));
  std::vector<int32_t> all(static_cast<size_t>(s.experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < s.tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    for (int64_t j = 0; j < s.top_k; ++j) {
      ids.push_back(all[static_cast<size_t>(j)]);
      weights.push_back(uniform(random));
    }
  }
}

TestInput TestInput::Select(const std::vector<int64_t>& tokens) const {
  TestInput part = *this;
  part.shape.tokens = static_cast<int64_t>(tokens.size());
  part.hidden.clear();
  part.ids.clear();
  part.weights.clear();
  for (const int64_t t : tokens) {
    const auto h = hidden.begin() + t * shape.hidden;
    part.hidden.insert(part.hidden.end(), h, h + shape.hidden);
    const auto i = ids.begin() + t * shape.top_k;
    part.ids.insert(part.ids.end(), i, i + shape.top_k);
    const auto w = weights.begin() + t * shape.top_k;
    part.weights.insert(part.weights.end(), w, w + shape.top_k);
  }
  return part;
}

TestLayer::TestLayer(const TestShape& s, WeightFormat format, uint32_t seed, float spread)
    : shape(s) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto add = [&](int64_t rows, int64_t columns) {
    std::vector<float> x(static_cast<size_t>(rows * columns));
    const float sigma = spread / std::sqrt(static_cast<float>(columns));
    for (float& value : x) value = sigma * normal(random);
    storage.emplace_back();
    originals.push_back(x);
    return Encode(x, rows, columns, format, storage.back());
  };
  for (int64_t e = 0; e < s.experts; ++e) {
    ExpertWeights expert;
    expert.gate = add(s.intermediate, s.hidden);
    expert.up = add(s.intermediate, s.hidden);
    expert.down = add(s.hidden, s.intermediate);
    experts.push_back(expert);
  }
}

MoeParams TestLayer::Params(Arithmetic arithmetic) const {
  return {.hidden = shape.hidden,
          .intermediate = shape.intermediate,
          .arithmetic = arithmetic,
          .swiglu = {.limit = 10}};
}

MoeLayer TestLayer::Layer(const MoeParams& params, const ExpertPlacement* placement) const {
  const ExpertPlacement everything = ExpertPlacement::Single(static_cast<int32_t>(experts.size()));
  const ExpertPlacement& used = placement != nullptr ? *placement : everything;
  std::vector<ExpertWeights> local;
  for (int32_t e = 0; e < used.local_experts(); ++e) {
    local.push_back(experts[static_cast<size_t>(Index(used.ToGlobal(LocalExpert{e})))]);
  }
  auto layer = MoeLayer::Create(params, used, std::move(local), "test layer");
  HB_CHECK(layer.has_value(), "{}", layer.error().message);
  return *std::move(layer);
}

std::vector<float> TestLayer::Run(const MoeParams& params, const TestInput& input,
                                  const RunOptions& options) const {
  ThreadPool pool(options.threads);
  const MoeLayer layer = Layer(params, options.placement);
  MoeWorkspace own(Limits(options.workspace != nullptr ? 0 : options.max_tokens));
  std::vector<float> out(input.hidden.size(), NAN);
  layer.Run(Context(pool, options.isa), input.Hidden(), input.Routing(),
            {out.data(), input.shape.tokens, shape.hidden},
            options.workspace != nullptr ? *options.workspace : own, options.counters);
  return out;
}

std::vector<float> ReferencePipeline(const TestLayer& layer, const MoeParams& params,
                                     const TestInput& input) {
  const TestShape& shape = input.shape;
  std::vector<float> out(input.hidden.size(), 0.0f);
  for (int64_t s = 0; s < shape.tokens * shape.top_k; ++s) {
    const int32_t id = input.ids[static_cast<size_t>(s)];
    if (id < 0 || id >= static_cast<int32_t>(layer.experts.size())) continue;
    const auto x = input.hidden.begin() + s / shape.top_k * shape.hidden;
    const float weight = input.weights[static_cast<size_t>(s)];
    const std::vector<float> value =
        SlotValue(layer.experts[static_cast<size_t>(id)], params, {x, x + shape.hidden}, weight);
    float* sum = out.data() + s / shape.top_k * shape.hidden;
    for (size_t n = 0; n < value.size(); ++n) {
      sum[n] = params.routing_weight == RoutingWeightPlacement::kBeforeDown
                   ? sum[n] + value[n]
                   : std::fma(weight, value[n], sum[n]);
    }
  }
  for (float& value : out) value *= params.output_scale;
  return out;
}

std::vector<double> ExactLayer(const TestLayer& layer, const TestInput& input) {
  std::vector<std::vector<float>> decoded;
  for (const ExpertWeights& expert : layer.experts) {
    for (const WeightMatrix* w : {&expert.gate, &expert.up, &expert.down}) {
      std::vector<float>& rows = decoded.emplace_back(static_cast<size_t>(w->rows * w->columns));
      for (int64_t n = 0; n < w->rows; ++n) DequantizeRow(*w, n, rows.data() + n * w->columns);
    }
  }
  return DoubleLayer(layer, input, decoded);
}

std::vector<double> OriginalLayer(const TestLayer& layer, const TestInput& input) {
  return DoubleLayer(layer, input, layer.originals);
}

}  // namespace halfbyte
