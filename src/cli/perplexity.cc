// halfbyte perplexity MODEL_DIR --text FILE | --ids FILE: see docs/perplexity.md.
#include "offline/perplexity.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/ranked_command.h"
#include "text/token_ids.h"

namespace halfbyte {
namespace {

struct PerplexityFlags {
  ModelFlags model;
  std::string text;
  std::string ids;
  std::optional<int64_t> context;
  bool json = false;
};

Result<std::vector<std::vector<int32_t>>> ReadSequences(const PerplexityFlags& flags) {
  if (!flags.ids.empty()) return ReadTokenSequences(flags.ids);
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.text));
  HB_ASSIGN_OR_RETURN(auto ids, EncodeText(flags.model, text));
  return std::vector<std::vector<int32_t>>{std::move(ids)};
}

Result<ExitCode> RunPerplexity(const PerplexityFlags& flags, Communicator& ranks) {
  HB_ASSIGN_OR_RETURN(const auto sequences, ReadSequences(flags));
  HB_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(flags.model, ranks));
  HB_ASSIGN_OR_RETURN(const int64_t context, ContextOf(opened, flags.context));
  const ModelUse use = EvaluationOf(opened, context);
  HB_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(std::move(opened), flags.model, use));
  std::vector<std::vector<int32_t>> pieces;
  int64_t total = 0;
  for (const auto& sequence : sequences) {
    HB_ASSIGN_OR_RETURN(auto cut, CutIntoContexts(sequence, context));
    for (auto& piece : cut) pieces.push_back(std::move(piece));
    total += std::ssize(sequence);
  }
  std::optional<Progress> progress(std::in_place, "perplexity", total, "token");
  HB_ASSIGN_OR_RETURN(const Perplexity result,
                      MeasurePerplexity(*model.transformer, pieces,
                                        [&](int64_t tokens) { progress->Advance(tokens); }));
  progress.reset();  // clears its line
  if (!ranks.first()) return ExitCode::kOk;
  if (flags.json) {
    const Json json = {{"nll", result.nll}, {"tokens", result.tokens}, {"context", context}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("mean NLL {:.5f} nats, perplexity {:.3f}, over {} tokens in contexts of {}\n",
               result.nll, std::exp(result.nll), result.tokens, context);
  }
  return ExitCode::kOk;
}

}  // namespace

void AddPerplexity(CLI::App& app) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  AddModelFlags(*command, flags->model);
  CLI::Option_group* input = command->add_option_group("input");
  input->add_option("--text", flags->text, "Text file; control tokens in it are recognized");
  input->add_option("--ids", flags->ids, "JSON file: a list of token ids, or a list of lists");
  input->require_option(1);
  command->add_option("--context", flags->context,
                      "Tokens that are evaluated together; longer texts are cut into pieces of it "
                      "(default: 1024, or the model's context if that is smaller)");
  command->add_flag("--json", flags->json, "Print {\"nll\", \"tokens\", \"context\"}");
  OnRunRanked(*command, [flags](Communicator& ranks) { return RunPerplexity(*flags, ranks); });
}

}  // namespace halfbyte
