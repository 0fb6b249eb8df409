#include "checkpoint/convert/report.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/progress.h"

namespace halfbyte {
namespace {

constexpr size_t kListedBlocks = 10;  // in text; JSON has all

// JSON has no infinity: null stands for it.
Json Finite(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json ToJson(const MatrixReport& matrix) {
  Json json = {{"name", matrix.name},
               {"action", ConvertActionName(matrix.action)},
               {"from", StoredFormatName(matrix.from)},
               {"shape", {matrix.rows, matrix.columns}},
               {"source_bytes", matrix.source_bytes},
               {"bytes", matrix.bytes}};
  const ErrorStats& error = matrix.error;
  json["elements"] = error.count;
  json["differing"] = matrix.differing;
  json["sqnr_db"] = Finite(error.sqnr_db());
  json["signal"] = Finite(error.signal);
  json["noise"] = Finite(error.noise);
  json["max_abs_error"] = Finite(error.max_abs_error);
  json["worst"] = {{"index", error.worst_index},
                   {"value", Finite(error.worst_value)},
                   {"reference", Finite(error.worst_reference)}};
  if (!MakesNvfp4(matrix.action)) return json;
  json["global_scale"] = matrix.global_scale;
  json["same_global_scale"] = matrix.same_global_scale;
  json["blocks"] = {{"count", matrix.blocks.blocks},
                    {"zero", matrix.blocks.zero},
                    {"flushed", matrix.blocks.flushed},
                    {"at_max", matrix.blocks.at_max},
                    {"clipped", matrix.blocks.clipped}};
  json["requantized_blocks"] = Json::array();
  for (const RequantizedBlock& block : matrix.requantized) {
    json["requantized_blocks"].push_back({block.row, block.block});
  }
  return json;
}

double InfiniteIfNull(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
}

// Throws on anything unexpected: ParseShardReport catches.
MatrixReport ParseMatrix(const Json& json) {
  MatrixReport matrix;
  matrix.name = json.at("name").get<std::string>();
  const auto action = json.at("action").get<std::string>();
  for (int i = 0; i < kConvertActions; ++i) {
    if (action == ConvertActionName(ConvertAction(i))) matrix.action = ConvertAction(i);
  }
  const auto from = json.at("from").get<std::string>();
  for (int i = 0; i < kStoredFormats; ++i) {
    if (from == StoredFormatName(StoredFormat(i))) matrix.from = StoredFormat(i);
  }
  matrix.rows = json.at("shape").at(0).get<int64_t>();
  matrix.columns = json.at("shape").at(1).get<int64_t>();
  matrix.source_bytes = json.at("source_bytes").get<int64_t>();
  matrix.bytes = json.at("bytes").get<int64_t>();
  matrix.error.count = json.at("elements").get<int64_t>();
  matrix.differing = json.at("differing").get<int64_t>();
  matrix.error.signal = InfiniteIfNull(json.at("signal"));
  matrix.error.noise = InfiniteIfNull(json.at("noise"));
  matrix.error.max_abs_error = InfiniteIfNull(json.at("max_abs_error"));
  matrix.error.worst_index = json.at("worst").at("index").get<int64_t>();
  matrix.error.worst_value = static_cast<float>(InfiniteIfNull(json.at("worst").at("value")));
  matrix.error.worst_reference =
      static_cast<float>(InfiniteIfNull(json.at("worst").at("reference")));
  if (!MakesNvfp4(matrix.action)) return matrix;
  matrix.global_scale = json.at("global_scale").get<float>();
  matrix.same_global_scale = json.at("same_global_scale").get<bool>();
  const Json& blocks = json.at("blocks");
  matrix.blocks = {blocks.at("count").get<int64_t>(), blocks.at("zero").get<int64_t>(),
                   blocks.at("flushed").get<int64_t>(), blocks.at("at_max").get<int64_t>(),
                   blocks.at("clipped").get<int64_t>()};
  for (const Json& block : json.at("requantized_blocks")) {
    matrix.requantized.push_back({block.at(0).get<int64_t>(), block.at(1).get<int64_t>()});
  }
  return matrix;
}

// Everything of one action.
struct ActionTotals {
  int64_t matrices = 0;
  int64_t source_bytes = 0;
  int64_t bytes = 0;
  int64_t elements = 0;
  int64_t differing = 0;
  int64_t exact_matrices = 0;
  int64_t same_global_scales = 0;
  double signal = 0;
  double noise = 0;
  Nvfp4BlockStats blocks;
  std::vector<std::pair<const MatrixReport*, RequantizedBlock>> requantized;
  const MatrixReport* worst = nullptr;  // lowest SQNR
  const MatrixReport* best = nullptr;   // highest finite SQNR

  void Add(const MatrixReport& matrix) {
    ++matrices;
    source_bytes += matrix.source_bytes;
    bytes += matrix.bytes;
    elements += matrix.error.count;
    differing += matrix.differing;
    exact_matrices += matrix.differing == 0;
    same_global_scales += matrix.same_global_scale;
    signal += matrix.error.signal;
    noise += matrix.error.noise;
    blocks += matrix.blocks;
    for (const RequantizedBlock& block : matrix.requantized)
      requantized.push_back({&matrix, block});
    if (matrix.error.exact()) return;
    const double sqnr = matrix.error.sqnr_db();
    if (worst == nullptr || sqnr < worst->error.sqnr_db()) worst = &matrix;
    if (best == nullptr || sqnr > best->error.sqnr_db()) best = &matrix;
  }
  double sqnr_db() const { return 10 * std::log10(signal / noise); }
};

struct Totals {
  std::array<ActionTotals, kConvertActions> by_action;
  int64_t tensors = 0;
  int64_t tensor_bytes = 0;
  int64_t file_bytes = 0;
  int64_t copied_tensors = 0;
  int64_t copied_bytes = 0;

  explicit Totals(const ConversionReport& report) {
    for (const ShardReport& shard : report.shards) {
      tensors += shard.tensors;
      tensor_bytes += shard.tensor_bytes;
      file_bytes += shard.file_bytes;
      copied_tensors += shard.copied_tensors;
      copied_bytes += shard.copied_bytes;
      for (const MatrixReport& matrix : shard.matrices) {
        by_action[static_cast<size_t>(matrix.action)].Add(matrix);
      }
    }
  }
};

Json ToJson(const ActionTotals& totals) {
  Json json = {{"matrices", totals.matrices},
               {"source_bytes", totals.source_bytes},
               {"bytes", totals.bytes},
               {"elements", totals.elements},
               {"differing", totals.differing},
               {"exact_matrices", totals.exact_matrices},
               {"requantized_blocks", totals.requantized.size()},
               {"flushed_blocks", totals.blocks.flushed},
               {"clipped_blocks", totals.blocks.clipped}};
  json["sqnr_db"] = Finite(totals.sqnr_db());
  if (totals.worst != nullptr) {
    json["worst"] = {{"name", totals.worst->name},
                     {"sqnr_db", Finite(totals.worst->error.sqnr_db())}};
    json["best"] = {{"name", totals.best->name}, {"sqnr_db", Finite(totals.best->error.sqnr_db())}};
  }
  return json;
}

std::string QuantizedText(const ActionTotals& totals) {
  if (totals.worst == nullptr) return "    all values exact\n";
  const ErrorStats& error = totals.worst->error;
  std::string text = fmt::format(
      "    SQNR {:.2f} dB over all, {:.2f} .. {:.2f} dB per matrix; worst {}\n"
      "    its largest error: {} for {} at element {}\n",
      totals.sqnr_db(), totals.worst->error.sqnr_db(), totals.best->error.sqnr_db(),
      totals.worst->name, error.worst_value, error.worst_reference, error.worst_index);
  if (totals.blocks.blocks > 0) {
    text += fmt::format("    {} blocks: {} all zero, {} flushed to zero, {} clipped\n",
                        totals.blocks.blocks, totals.blocks.zero, totals.blocks.flushed,
                        totals.blocks.clipped);
  }
  return text;
}

std::string LosslessText(const ActionTotals& totals) {
  std::string text = fmt::format(
      "    {} of {} elements decode to the same number as the source ({} of {} matrices exact)\n",
      totals.elements - totals.differing, totals.elements, totals.exact_matrices, totals.matrices);
  if (totals.requantized.empty()) return text;
  text += fmt::format(
      "    {} blocks of 32 lie more than 17 binades below the largest and were re-quantized:\n",
      totals.requantized.size());
  for (size_t i = 0; i < totals.requantized.size() && i < kListedBlocks; ++i) {
    const auto& [matrix, block] = totals.requantized[i];
    text += fmt::format("      {} row {} block {}\n", matrix->name, block.row, block.block);
  }
  if (totals.requantized.size() > kListedBlocks) {
    text += fmt::format("      and {} more (--json lists all)\n",
                        totals.requantized.size() - kListedBlocks);
  }
  return text;
}

std::string RewrappedText(const ActionTotals& totals) {
  return fmt::format(
      "    codes and block scales equal byte for byte; {} of {} global scales read back equal, the "
      "others differ\n    by the rounding of one fp32 reciprocal\n",
      totals.same_global_scales, totals.matrices);
}

std::string ToText(ConvertAction action, const ActionTotals& totals) {
  std::string text =
      fmt::format("  {:<12}{:>8} matrices  {:>11} -> {}\n", ConvertActionName(action),
                  totals.matrices, HumanQuantity(static_cast<double>(totals.source_bytes), "B"),
                  HumanQuantity(static_cast<double>(totals.bytes), "B"));
  switch (action) {
    case ConvertAction::kQuantize:
    case ConvertAction::kDequantize:
    case ConvertAction::kFuse:
      return text + QuantizedText(totals);
    case ConvertAction::kLossless:
      return text + LosslessText(totals);
    case ConvertAction::kRewrap:
      return text + RewrappedText(totals);
  }
  return text;
}

}  // namespace

Json ToJson(const ShardReport& report) {
  Json json = {{"file", report.file},
               {"file_bytes", report.file_bytes},
               {"tensors", report.tensors},
               {"tensor_bytes", report.tensor_bytes},
               {"copied_tensors", report.copied_tensors},
               {"copied_bytes", report.copied_bytes},
               {"matrices", Json::array()}};
  for (const MatrixReport& matrix : report.matrices) json["matrices"].push_back(ToJson(matrix));
  return json;
}

Result<ShardReport> ParseShardReport(const Json& json, const std::string& source) {
  try {
    ShardReport report;
    report.file = json.at("file").get<std::string>();
    report.file_bytes = json.at("file_bytes").get<int64_t>();
    report.tensors = json.at("tensors").get<int64_t>();
    report.tensor_bytes = json.at("tensor_bytes").get<int64_t>();
    report.copied_tensors = json.at("copied_tensors").get<int64_t>();
    report.copied_bytes = json.at("copied_bytes").get<int64_t>();
    for (const Json& matrix : json.at("matrices")) report.matrices.push_back(ParseMatrix(matrix));
    return report;
  } catch (const Json::exception& e) {
    return MakeError("{}: not the report of a shard: {}", source, e.what());
  }
}

Json ToJson(const ConversionReport& report) {
  const Totals totals(report);
  Json json = {{"source", report.source},
               {"target", report.target},
               {"format", TargetFormatName(report.format)},
               {"scope", ConvertScopeName(report.scope)},
               {"shards", report.shards.size()},
               {"resumed_shards", report.resumed_shards},
               {"tensors", totals.tensors},
               {"tensor_bytes", totals.tensor_bytes},
               {"file_bytes", totals.file_bytes},
               {"copied", {{"tensors", totals.copied_tensors}, {"bytes", totals.copied_bytes}}}};
  for (int i = 0; i < kConvertActions; ++i) {
    const ActionTotals& action = totals.by_action[static_cast<size_t>(i)];
    if (action.matrices > 0) json[ConvertActionName(ConvertAction(i))] = ToJson(action);
  }
  json["kept"] = Json::array();
  for (const KeptMatrix& kept : report.kept) {
    json["kept"].push_back({{"name", kept.name}, {"reason", kept.reason}});
  }
  json["matrices"] = Json::array();
  for (const ShardReport& shard : report.shards) {
    for (const MatrixReport& matrix : shard.matrices) {
      Json entry = ToJson(matrix);
      entry["shard"] = shard.file;
      json["matrices"].push_back(std::move(entry));
    }
  }
  json["seconds"] = report.seconds;
  json["peak_resident_bytes"] = report.peak_resident_bytes;
  return json;
}

std::string ToText(const ConversionReport& report) {
  const Totals totals(report);
  std::string text = fmt::format("{} -> {} ({}, scope {})\n", report.source, report.target,
                                 TargetFormatName(report.format), ConvertScopeName(report.scope));
  for (int i = 0; i < kConvertActions; ++i) {
    const ActionTotals& action = totals.by_action[static_cast<size_t>(i)];
    if (action.matrices > 0) text += ToText(ConvertAction(i), action);
  }
  text += fmt::format("  {:<12}{:>8} tensors   {:>11}, byte for byte\n", "copied",
                      totals.copied_tensors,
                      HumanQuantity(static_cast<double>(totals.copied_bytes), "B"));
  for (const KeptMatrix& kept : report.kept) {
    text += fmt::format("  kept as it is: {}: {}\n", kept.name, kept.reason);
  }
  text += fmt::format("  {} tensors, {} bytes in {} shards", totals.tensors, totals.tensor_bytes,
                      report.shards.size());
  if (report.resumed_shards > 0) {
    text += fmt::format(" ({} from an earlier run)", report.resumed_shards);
  }
  return text + fmt::format("; {:.1f} s, peak memory {}\n", report.seconds,
                            HumanQuantity(static_cast<double>(report.peak_resident_bytes), "B"));
}

}  // namespace halfbyte
