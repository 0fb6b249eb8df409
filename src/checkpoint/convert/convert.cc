// index -> plan -> per shard: decode rows -> quantize or rewrite -> write -> report.
#include "checkpoint/convert/convert.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory_usage.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/convert/announcement.h"
#include "checkpoint/convert/matrix_job.h"
#include "checkpoint/convert/target_directory.h"
#include "checkpoint/model_checkpoint.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

// What makes two runs the same conversion.
Json RequestOf(const ModelCheckpoint& model, const ConvertOptions& options) {
  const fs::path& directory = model.checkpoint().directory();
  Json files = Json::array();
  const auto add = [&](const fs::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return;
    files.push_back({path.lexically_relative(directory).string(), info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec});
  };
  add(directory / "config.json");
  for (const auto& file : model.checkpoint().files()) add(file->path());
  std::error_code error;
  return {{"state_version", 2},
          {"format", TargetFormatName(options.format)},
          {"scope", ConvertScopeName(options.scope)},
          {"four_over_six", options.four_over_six},
          {"source", fs::weakly_canonical(directory, error).string()},
          {"source files", files}};
}

// Fills the shards of the result from several threads. The unit of work is a job, so that one big
// shard keeps all threads busy too; jobs are taken shard by shard, so few files are open at a time.
class ShardRunner {
 public:
  ShardRunner(const ModelCheckpoint& model, const ConvertOptions& options, TargetDirectory& target)
      : model_(model), options_(options), target_(target) {}

  Status Run(const std::vector<const ShardPlan*>& plans) {
    int64_t source_bytes = 0;
    for (const ShardPlan* plan : plans) {
      shards_.push_back(std::make_unique<Shard>(*plan));
      for (size_t i = 0; i < plan->copies.size() + plan->matrices.size(); ++i) {
        work_.push_back({shards_.back().get(), i});
      }
      source_bytes += plan->source_bytes();
    }
    progress_ = std::make_unique<Progress>("convert", source_bytes);
    ThreadPool pool(options_.threads);
    pool.ParallelFor(static_cast<int64_t>(work_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) RunOne(work_[static_cast<size_t>(i)]);
    });
    progress_.reset();
    shards_.clear();  // removes the temporary files of unfinished shards
    if (failure_) return tl::unexpected(*failure_);
    return {};
  }

  std::vector<ShardReport> TakeReports() { return std::move(reports_); }

 private:
  struct Shard {
    explicit Shard(const ShardPlan& p) : plan(p), left(p.copies.size() + p.matrices.size()) {
      report.file = p.file;
      report.tensors = static_cast<int64_t>(p.outputs.size());
      for (const TensorSpec& output : p.outputs) report.tensor_bytes += output.bytes();
    }
    const ShardPlan& plan;
    std::mutex mutex;
    std::unique_ptr<SafetensorsWriter> writer;  // from the first job to the last
    size_t left;                                // jobs
    ShardReport report;
  };
  struct Work {
    Shard* shard = nullptr;
    size_t job = 0;  // copies first, then matrices
  };

  void RunOne(const Work& work) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
    }
    const Status status = RunJob(*work.shard, work.job);
    if (status) return;
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = status.error();
  }

  Status RunJob(Shard& shard, size_t job) {
    HB_RETURN_IF_ERROR(OpenWriter(shard));
    std::vector<MatrixReport> reports;
    int64_t copied = 0;
    if (job < shard.plan.copies.size()) {
      HB_RETURN_IF_ERROR(CopyTensor(shard.plan.copies[job], *shard.writer));
      copied = shard.plan.copies[job].source->info->bytes;
      progress_->Advance(copied);
    } else {
      const MatrixJob& matrices = shard.plan.matrices[job - shard.plan.copies.size()];
      const Nvfp4Rule rule = options_.four_over_six ? Nvfp4Rule::k4Over6 : Nvfp4Rule::kAmaxTo6;
      HB_ASSIGN_OR_RETURN(reports,
                          ConvertMatrices(model_, matrices, options_.format, rule, *shard.writer));
      for (const MatrixReport& report : reports) progress_->Advance(report.source_bytes);
    }
    const std::lock_guard lock(shard.mutex);
    std::move(reports.begin(), reports.end(), std::back_inserter(shard.report.matrices));
    if (job < shard.plan.copies.size()) {
      ++shard.report.copied_tensors;
      shard.report.copied_bytes += copied;
    }
    return --shard.left == 0 ? Finish(shard) : Status{};
  }

  Status OpenWriter(Shard& shard) {
    const std::lock_guard lock(shard.mutex);
    if (shard.writer != nullptr) return {};
    const fs::path path = target_.path() / shard.plan.file;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);  // the writer reports a failure
    HB_ASSIGN_OR_RETURN(shard.writer, SafetensorsWriter::Create(path, shard.plan.outputs));
    return {};
  }

  Status Finish(Shard& shard) {
    HB_RETURN_IF_ERROR(shard.writer->Finish());
    shard.report.file_bytes = shard.writer->file_bytes();
    shard.writer.reset();
    // Jobs end in any order; reports do not show it.
    std::sort(shard.report.matrices.begin(), shard.report.matrices.end(),
              [](const MatrixReport& a, const MatrixReport& b) { return a.name < b.name; });
    const std::lock_guard lock(mutex_);
    HB_RETURN_IF_ERROR(target_.Record(shard.report));
    reports_.push_back(shard.report);
    if (options_.stop_after && options_.stop_after(shard.report)) return MakeError("stopped");
    return {};
  }

  const ModelCheckpoint& model_;
  const ConvertOptions& options_;
  TargetDirectory& target_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<Work> work_;
  std::unique_ptr<Progress> progress_;
  std::mutex mutex_;  // of what follows and of target_
  std::vector<ShardReport> reports_;
  std::optional<Error> failure_;  // the first
};

// What a result says of a quantized KV cache has its place in the quantization section.
void WarnOfADroppedKvCache(const Json& original, const Json& config) {
  const auto claims = [](const Json& of) {
    const Json section = of.value("quantization_config", Json::object());
    return section.is_object() && (!section.value("kv_cache_scheme", Json()).is_null() ||
                                   !section.value("kv_cache_quant_algo", Json()).is_null());
  };
  if (!claims(original) || claims(config)) return;
  spdlog::warn("config.json: the quantized KV cache that it announces has no place in the result");
}

// Everything but the shards.
Status WriteOtherFiles(const fs::path& source, const fs::path& target, const ConversionPlan& plan) {
  constexpr int kIndent = 2;
  HB_ASSIGN_OR_RETURN(const Json original, ReadJsonFile(source / "config.json"));
  const Json config = MakeConfig(plan, original);
  WarnOfADroppedKvCache(original, config);
  if (plan.format == TargetFormat::kModelOptNvfp4) {
    HB_RETURN_IF_ERROR(WriteFileAtomically(target / "hf_quant_config.json",
                                           PrintedJson(MakeHfQuantConfig(config), kIndent) + "\n"));
  }
  HB_RETURN_IF_ERROR(
      WriteFileAtomically(target / "config.json", PrintedJson(config, kIndent) + "\n"));
  HB_RETURN_IF_ERROR(CopyOtherFiles(source, target));
  return WriteFileAtomically(target / "model.safetensors.index.json",
                             MakeIndex(plan).dump(kIndent) + "\n");
}

int64_t FileBytes(const std::vector<const ShardPlan*>& plans) {
  int64_t bytes = 0;
  for (const ShardPlan* plan : plans) bytes += SafetensorsFileBytes(plan->outputs);
  return bytes;
}

}  // namespace

Result<ConversionReport> ConvertCheckpoint(const fs::path& source, const fs::path& target,
                                           const ConvertOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  HB_RETURN_IF_ERROR(CheckTargetPath(source, target));
  HB_ASSIGN_OR_RETURN(const ModelCheckpoint model, ModelCheckpoint::Open(source));
  HB_ASSIGN_OR_RETURN(const ConversionPlan plan,
                      PlanConversion(model, options.format, options.scope));
  HB_ASSIGN_OR_RETURN(
      const std::unique_ptr<TargetDirectory> directory,
      TargetDirectory::Prepare(target, RequestOf(model, options), options.overwrite));

  ConversionReport report;
  report.shards = directory->finished();
  report.resumed_shards = static_cast<int64_t>(report.shards.size());
  std::vector<const ShardPlan*> open;
  for (const ShardPlan& shard : plan.shards) {
    const bool finished =
        std::any_of(report.shards.begin(), report.shards.end(),
                    [&](const ShardReport& other) { return other.file == shard.file; });
    if (!finished) open.push_back(&shard);
  }
  HB_RETURN_IF_ERROR(directory->CheckRoom(FileBytes(open)));

  ShardRunner runner(model, options, *directory);
  HB_RETURN_IF_ERROR(runner.Run(open));
  for (ShardReport& shard : runner.TakeReports()) report.shards.push_back(std::move(shard));
  HB_RETURN_IF_ERROR(WriteOtherFiles(source, target, plan));
  HB_RETURN_IF_ERROR(directory->Close());

  std::sort(report.shards.begin(), report.shards.end(),
            [](const ShardReport& a, const ShardReport& b) { return a.file < b.file; });
  report.source = source.string();
  report.target = target.string();
  report.format = options.format;
  report.scope = options.scope;
  report.kept = plan.kept;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.peak_resident_bytes = PeakResidentBytes();
  return report;
}

}  // namespace halfbyte
