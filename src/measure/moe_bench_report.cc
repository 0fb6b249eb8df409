#include "base/progress.h"
#include "measure/moe_bench.h"
#include "measure/report_values.h"

namespace halfbyte {
namespace {

// Of a row's layer.
double BytesPerSecond(const MoeBenchRow& row) {
  return static_cast<double>(row.weight_bytes) / (row.layer_us * 1e-6);
}
double Flops(const MoeBenchRow& row) {
  return static_cast<double>(row.flops) / (row.layer_us * 1e-6);
}

}  // namespace

Json MoeBenchJson(const MoeBenchReport& report) {
  Json rows = Json::array();
  for (const MoeBenchRow& row : report.rows) {
    rows.push_back({{"tokens", row.tokens},
                    {"arithmetic", ArithmeticName(row.arithmetic)},
                    {"kernel", row.kernel},
                    {"layer_us", row.layer_us},
                    {"steady_us", OrNull(row.steady_us)},
                    {"weight_bytes", row.weight_bytes},
                    {"flops", row.flops},
                    {"gb_per_s", Giga(BytesPerSecond(row))},
                    {"read_gb_per_s", Giga(row.read_bytes_per_second)},
                    {"read_share", row.read_share},
                    {"gflops", Giga(Flops(row))},
                    {"phases_us",
                     {{"route", row.route_us},
                      {"plan", row.plan_us},
                      {"gate_up", row.gate_up_us},
                      {"down", row.down_us}}},
                    {"steps", row.steps}});
  }
  return {{"cpu", report.cpu},
          {"instruction_set", report.instruction_set},
          {"ranks", report.ranks},
          {"threads", report.threads},
          {"shape",
           {{"hidden", report.shape.hidden},
            {"intermediate", report.shape.intermediate},
            {"experts", report.shape.experts},
            {"top_k", report.shape.top_k}}},
          {"routing", report.routing.name()},
          {"memory_bytes", report.memory_bytes},
          {"limits",
           {{"read_gb_per_s", Giga(report.read_bytes_per_second)},
            {"int8_gops", OrNull(Giga(report.int8_ops))},
            {"bf16_gflops", OrNull(Giga(report.bf16_flops))},
            {"fp32_gflops", OrNull(Giga(report.fp32_flops))},
            {"int8_instruction", report.int8_instruction},
            {"bf16_instruction", report.bf16_instruction}}},
          {"pack_gb_per_s", Giga(report.pack_bytes_per_second)},
          {"rows", std::move(rows)}};
}

namespace {

// ", int8 123 GOP/s (vpdpbusd)"; what was not measured says why, or nothing.
std::string LimitText(std::string_view name, double rate, std::string_view unit,
                      std::string_view instruction) {
  if (rate > 0) {
    return fmt::format(", {} {:.0f} {}{}", name, Giga(rate), unit,
                       instruction.empty() ? "" : fmt::format(" ({})", instruction));
  }
  return instruction.empty() ? "" : fmt::format(", no {} ({})", name, instruction);
}

}  // namespace

std::string MoeBenchText(const MoeBenchReport& report) {
  const MoeShape& shape = report.shape;
  std::string text = fmt::format(
      "{}, {}{} threads, {}\n"
      "hidden {}, intermediate {}, {} experts, {} per token, {} routing; {} of memory\n"
      "limits: read {:.1f} GB/s{}{}{}\n"
      "packed at {:.2f} GB/s\n\n"
      "{:>10} {:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8}  kernel\n",
      report.cpu, report.ranks == 1 ? "" : fmt::format("{} ranks of ", report.ranks),
      report.threads, report.instruction_set, shape.hidden, shape.intermediate, shape.experts,
      shape.top_k, report.routing.name(), HumanBytes(report.memory_bytes),
      Giga(report.read_bytes_per_second),
      LimitText("int8", report.int8_ops, "GOP/s", report.int8_instruction),
      LimitText("bf16", report.bf16_flops, "GFLOP/s", report.bf16_instruction),
      LimitText("fp32", report.fp32_flops, "GFLOP/s", ""), Giga(report.pack_bytes_per_second),
      "arithmetic", "tokens", "layer us", "steady", "route", "plan", "gate_up", "down", "GB/s",
      "of read", "GFLOP/s");
  for (const MoeBenchRow& row : report.rows) {
    text += fmt::format(
        "{:>10} {:>7} {:>11.1f} {:>9} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.2f} {:>6.0f}% "
        "{:>8.1f}  {}\n",
        ArithmeticName(row.arithmetic), row.tokens, row.layer_us,
        row.steady_us > 0 ? fmt::format("{:.1f}", row.steady_us) : "-", row.route_us, row.plan_us,
        row.gate_up_us, row.down_us, Giga(BytesPerSecond(row)), 100 * row.read_share,
        Giga(Flops(row)), row.kernel);
  }
  return text;
}

}  // namespace halfbyte
