#include <algorithm>

#include "base/progress.h"
#include "measure/model_bench.h"
#include "measure/report_values.h"

namespace halfbyte {
namespace {

double PerSecond(const ModelBenchRow& row, int64_t amount) {
  return static_cast<double>(amount) / row.seconds;
}

int64_t CountKind(const ModelConfig& config, AttentionKind kind) {
  return std::ranges::count(config.layers, kind, &LayerConfig::attention);
}

bool IsPrompt(const ModelBenchRow& row) { return row.context == 0; }

Json OperationsJson(const ModelBenchRow& row) {
  Json operations = Json::object();
  for (int k = 0; k < kOperationKinds; ++k) {
    const OperationSum& sum = row.operations[static_cast<size_t>(k)];
    if (sum.calls == 0) continue;
    operations[OperationName(static_cast<OperationKind>(k))] = {
        {"calls", sum.calls},
        {"us", sum.seconds * 1e6},
        {"bytes", sum.work.bytes()},
        {"flops", sum.work.all_product_flops() + sum.work.other_flops}};
  }
  return operations;
}

Json RowJson(const ModelBenchRow& row) {
  Json json = IsPrompt(row) ? Json{{"tokens", row.new_tokens}}
                            : Json{{"sequences", row.sequences}, {"context", row.context}};
  json.update({{"steps", row.steps},
               {"seconds", row.seconds},
               {"shortest_seconds", row.shortest_seconds},
               {"layer_seconds", row.layer_seconds},
               {"tokens_per_s", PerSecond(row, row.new_tokens)},
               {"weight_bytes", row.work.weight_bytes},
               {"cache_bytes", row.work.cache_bytes},
               {"product_flops", row.work.all_product_flops()},
               {"other_flops", row.work.other_flops}});
  if (IsPrompt(row)) {
    json.update({{"gflops", Giga(PerSecond(row, row.work.all_product_flops()))},
                 {"gemm_seconds", row.gemm_seconds},
                 {"gemm_share", row.gemm_seconds / row.seconds}});
  } else {
    json.update({{"gb_per_s", Giga(PerSecond(row, row.work.bytes()))},
                 {"read_gb_per_s", Giga(row.read_bytes_per_second)},
                 {"read_share", row.read_share},
                 {"layer_read_share", row.layer_read_share}});
  }
  json["operations"] = OperationsJson(row);
  return json;
}

Json RowsJson(const ModelBenchReport& report, bool prompts) {
  Json rows = Json::array();
  for (const ModelBenchRow& row : report.rows) {
    if (IsPrompt(row) == prompts) rows.push_back(RowJson(row));
  }
  return rows;
}

Json GemmJson(const ModelBenchReport& report) {
  Json rates = Json::object();
  for (int f = 0; f < kWeightFormats; ++f) {
    const double rate = report.gemm_flops[static_cast<size_t>(f)];
    if (rate > 0) rates[WeightFormatName(static_cast<WeightFormat>(f))] = Giga(rate);
  }
  return rates;
}

// Each operation's share of the time, and what it reads or computes meanwhile.
std::string OperationsText(const ModelBenchRow& row) {
  std::string text;
  for (int k = 0; k < kOperationKinds; ++k) {
    const OperationSum& sum = row.operations[static_cast<size_t>(k)];
    if (sum.calls == 0) continue;
    const auto rate = [&](int64_t amount) {
      return amount > 0 ? fmt::format("{:.2f}", Giga(static_cast<double>(amount) / sum.seconds))
                        : "-";
    };
    text += fmt::format("    {:<16} {:>10.1f} us {:>5.1f}% {:>9} GB/s {:>9} GFLOP/s\n",
                        OperationName(static_cast<OperationKind>(k)), sum.seconds * 1e6,
                        100 * sum.seconds / row.seconds, rate(sum.work.bytes()),
                        rate(sum.work.all_product_flops() + sum.work.other_flops));
  }
  return text;
}

std::string RowText(const ModelBenchRow& row) {
  if (IsPrompt(row)) {
    return fmt::format(
        "prompt of {}: {:.3f} s, {:.1f} tokens/s; {:.1f} GFLOP/s, {:.0f}% of the packed "
        "kernels\n{}",
        row.new_tokens, row.seconds, PerSecond(row, row.new_tokens),
        Giga(PerSecond(row, row.work.all_product_flops())), 100 * row.gemm_seconds / row.seconds,
        OperationsText(row));
  }
  return fmt::format(
      "{} at {}: {:.2f} ms (shortest {:.2f}, layers alone {:.2f}), {:.2f} tokens/s; {:.3f} GB, "
      "{:.2f} GB/s, {:.0f}% of reading (layers alone {:.0f}%)\n{}",
      row.sequences, row.context, row.seconds * 1e3, row.shortest_seconds * 1e3,
      row.layer_seconds * 1e3, PerSecond(row, row.new_tokens),
      Giga(static_cast<double>(row.work.bytes())), Giga(PerSecond(row, row.work.bytes())),
      100 * row.read_share, 100 * row.layer_read_share, OperationsText(row));
}

}  // namespace

Json ModelBenchJson(const ModelBenchReport& report) {
  const ModelConfig& config = report.options.config;
  return {{"cpu", report.cpu},
          {"instruction_set", report.instruction_set},
          {"threads", report.threads},
          {"shape", report.options.shape},
          {"layers",
           {{"window", CountKind(config, AttentionKind::kWindow)},
            {"c4", CountKind(config, AttentionKind::kC4)},
            {"c128", CountKind(config, AttentionKind::kC128)}}},
          {"experts", config.routed_experts},
          {"top_k", config.experts_per_token},
          {"arithmetic", ArithmeticName(report.options.arithmetic)},
          {"chunk", report.options.chunk},
          {"memory_bytes", report.memory_bytes},
          {"weight_bytes", report.weight_bytes},
          {"making_seconds", report.making_seconds},
          {"limits",
           {{"read_gb_per_s", OrNull(Giga(report.read_bytes))},
            {"int8_gops", Giga(report.int8_ops)},
            {"bf16_gflops", Giga(report.bf16_flops)},
            {"gemm_gflops", GemmJson(report)}}},
          {"generation", RowsJson(report, false)},
          {"prompts", RowsJson(report, true)}};
}

std::string ModelBenchText(const ModelBenchReport& report) {
  const ModelConfig& config = report.options.config;
  std::string text = fmt::format(
      "{}, {} threads, {}\n"
      "{}: {} layers ({} window, {} C4, {} C128), {} experts, {} per token, {}; {} of memory, "
      "weights of {} made and packed in {:.1f} s\n"
      "limits: read {:.1f} GB/s, int8 {:.0f} GOP/s, bf16 {:.0f} GFLOP/s; packed kernels",
      report.cpu, report.threads, report.instruction_set, report.options.shape,
      config.layer_count(), CountKind(config, AttentionKind::kWindow),
      CountKind(config, AttentionKind::kC4), CountKind(config, AttentionKind::kC128),
      config.routed_experts, config.experts_per_token, ArithmeticName(report.options.arithmetic),
      HumanBytes(report.memory_bytes), HumanBytes(report.weight_bytes), report.making_seconds,
      Giga(report.read_bytes), Giga(report.int8_ops), Giga(report.bf16_flops));
  const Json gemm = GemmJson(report);
  for (const auto& [format, rate] : gemm.items()) {
    text += fmt::format(" {} {:.0f}", format, rate.get<double>());
  }
  text += " GFLOP/s\n\n";
  for (const ModelBenchRow& row : report.rows) text += RowText(row);
  return text;
}

}  // namespace halfbyte
