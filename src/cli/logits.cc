// halfbyte logits MODEL_DIR --ids FILE.json --out FILE.safetensors: see docs/logits.md.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/ranked_command.h"
#include "offline/prompt_logits.h"
#include "text/token_ids.h"

namespace halfbyte {

namespace {

constexpr char kTensor[] = "logits";

// Asked before the model is loaded. Nothing is replaced but older logits.
Status CheckTarget(const std::filesystem::path& out) {
  if (!std::filesystem::is_regular_file(out)) return {};
  const auto there = SafetensorsFile::Open(out);
  if (there && there->tensors().size() == 1 && there->tensors()[0].name == kTensor) return {};
  return MakeError("--out {}: is there already and holds no logits; name another file",
                   out.string());
}

}  // namespace

void AddLogits(CLI::App& app) {
  struct Flags {
    ModelFlags model;
    std::filesystem::path ids;
    std::filesystem::path out;
    std::vector<int64_t> chunks;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("logits", "Write the logits of every token of a prompt");
  AddModelFlags(*command, flags->model);
  command->add_option("--ids", flags->ids, "JSON file: a list of token ids")->required();
  command->add_option("--out", flags->out, "Safetensors file to write: logits F32 [tokens, vocab]")
      ->required();
  command
      ->add_option("--chunks", flags->chunks,
                   "Sizes of the forward calls, such as 5,1,1,17; the last one repeats")
      ->delimiter(',');
  OnRunRanked(*command, [flags](Communicator& ranks) -> Result<ExitCode> {
    HB_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokenIds(flags->ids));
    if (ranks.first()) HB_RETURN_IF_ERROR(CheckTarget(flags->out));
    const int64_t reference_tokens = flags->model.math == "fp32" ? std::ssize(ids) : 0;
    HB_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(flags->model, ranks, reference_tokens));
    const int64_t rows = std::min(std::ssize(ids), opened.options.batch_tokens);
    HB_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(std::move(opened), flags->model,
                                                           {.context_tokens = std::ssize(ids),
                                                            .logit_rows = rows,
                                                            .context_flag = "list of --ids"}));
    const int64_t vocab = model.transformer->config().vocab_size;
    std::unique_ptr<SafetensorsWriter> writer;  // the first rank's
    if (ranks.first()) {
      HB_ASSIGN_OR_RETURN(
          writer, SafetensorsWriter::Create(flags->out,
                                            {{kTensor, DType::kF32, {std::ssize(ids), vocab}}}));
    }
    Progress progress("logits", std::ssize(ids), "token");
    HB_RETURN_IF_ERROR(ForEachLogits(
        *model.transformer, ids, flags->chunks,
        [&](int64_t first, MatrixView<const float> logits) -> Status {
          progress.Advance(logits.rows);
          if (!writer) return {};
          const std::span<const float> values(logits.data,
                                              static_cast<size_t>(logits.rows * logits.columns));
          return writer->Write(0, first * vocab * int64_t{sizeof(float)}, std::as_bytes(values));
        }));
    if (writer) HB_RETURN_IF_ERROR(writer->Finish());
    return ExitCode::kOk;
  });
}

}  // namespace halfbyte
