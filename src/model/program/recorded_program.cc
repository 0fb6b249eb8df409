#include "model/program/recorded_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace halfbyte {
namespace {

std::string Text(Rows rows) {
  return fmt::format("{}[{},{}]", NameOf(rows.name),
                     rows.tokens == TokenSet::kAll ? "all" : "wanted", rows.columns);
}

const char* Text(Rounding rounding) { return rounding == Rounding::kBf16 ? " bf16" : ""; }

std::string Text(const Site& site) {
  return fmt::format("{} {}", site.block == Site::Block::kAttention ? "attention" : "moe",
                     site.layer);
}

std::string Text(const AttentionLayer& attention) {
  if (attention.rate == 0) return fmt::format("layer {} (window)", attention.layer);
  return fmt::format("layer {} (window and entries of {})", attention.layer, attention.rate);
}

std::string Text(std::string_view name, const Compression& compression) {
  return fmt::format(", {} of {} from {} {}{}", name, compression.dim, Text(compression.kv),
                     Text(compression.score), compression.overlap ? " overlapping" : "");
}

}  // namespace

Rows RecordedProgram::Take(RowsName name, TokenSet tokens, int64_t columns) {
  live_ += step_.count(tokens) * columns * (element_bytes_ != nullptr ? element_bytes_(name) : 4);
  most_live_ = std::max(most_live_, live_);
  return {name, tokens, columns};
}

void RecordedProgram::Embed(const ModuleKey& table, Rows streams, Rounding rounding) {
  operations_.push_back(
      fmt::format("embed {} -> {}{}", Describe(table), Text(streams), Text(rounding)));
}

void RecordedProgram::CrossBoundary(const Boundary& boundary) {
  std::string line = "boundary";
  if (boundary.left) line += fmt::format(" from {} {}", Text(*boundary.left), Text(boundary.y));
  line += fmt::format(" through {}", Text(boundary.streams));
  if (boundary.entered) line += fmt::format(" to {} {}", Text(*boundary.entered), Text(boundary.x));
  operations_.push_back(line + Text(boundary.rounding));
}

void RecordedProgram::Project(Rows x, std::span<const Product> products) {
  std::string line = fmt::format("project {}:", Text(x));
  for (const Product& product : products) {
    line += fmt::format("{} {} -> {}{}", &product == products.data() ? "" : ",",
                        Describe(product.weight), Text(product.y), Text(product.rounding));
  }
  operations_.push_back(line);
}

void RecordedProgram::Store(const CacheRows& rows) {
  std::string line = fmt::format("store {}: norm {}, window {}", Text(rows.attention),
                                 Text(rows.low_rank), Text(rows.window));
  if (rows.entries) line += Text("entries", *rows.entries);
  if (rows.index) line += Text("index keys", *rows.index);
  operations_.push_back(line + Text(rows.rounding));
}

void RecordedProgram::Select(const Selection& selection) {
  operations_.push_back(fmt::format("select {}: {} {} -> {} {}{}", Text(selection.attention),
                                    Text(selection.queries), Text(selection.weights),
                                    Text(selection.selected), Text(selection.count),
                                    Text(selection.rounding)));
}

void RecordedProgram::Attend(const Attention& attention) {
  operations_.push_back(fmt::format("attend {}: {}{} -> {}{}", Text(attention.attention),
                                    Text(attention.queries), attention.selection ? " selected" : "",
                                    Text(attention.attended), Text(attention.rounding)));
}

void RecordedProgram::Route(const Choice& choice) {
  operations_.push_back(fmt::format("route layer {}: {} -> {} {}", choice.layer,
                                    Text(choice.logits), Text(choice.experts),
                                    Text(choice.weights)));
}

Status RecordedProgram::RunExperts(const Experts& experts) {
  operations_.push_back(fmt::format("experts of layer {}: {} -> {}{}", experts.layer,
                                    Text(experts.x), Text(experts.y), Text(experts.rounding)));
  return {};
}

Rows RecordedProgram::KeepWanted(Rows all) {
  operations_.push_back(fmt::format("keep wanted of {}", Text(all)));
  return {all.name, TokenSet::kWanted, all.columns};
}

void RecordedProgram::MergeStreams(Rows streams, Rows x, Rounding rounding) {
  operations_.push_back(fmt::format("merge {} -> {}{}", Text(streams), Text(x), Text(rounding)));
}

void RecordedProgram::Logits(Rows x, const ModuleKey& head) {
  operations_.push_back(fmt::format("logits {}: {}", Text(x), Describe(head)));
}

std::vector<float> RecordedProgram::Read(Rows) const { return {}; }

}  // namespace halfbyte
