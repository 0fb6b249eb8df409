#include "model/cuda/cuda_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "model/cuda/decode_bucket.h"
#include "model/cuda/load_cuda_model.h"

namespace halfbyte {
// Graphs find the logits in one place, so there are rows for the largest.
int64_t CudaLogitRows(const TransformerOptions& options) {
  const int64_t of_graphs =
      std::min(options.batch_tokens, *std::ranges::max_element(kDecodeBuckets));
  return std::max(options.logit_rows, of_graphs);
}

Result<std::unique_ptr<CudaModel>> CudaModel::Load(const WeightSource& source,
                                                   const TransformerOptions& options,
                                                   const Context& context,
                                                   const LoadListener& on_part) {
  const ModelConfig& config = source.config();
  HB_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanCudaModel(source, options));
  HB_ASSIGN_OR_RETURN(const AvailableMemory available,
                      AvailableGpuMemory(*options.gpu, options.gpu_memory));
  HB_RETURN_IF_ERROR(plan.Check(available, "the model", "run it on the CPU"));
  HB_ASSIGN_OR_RETURN(CudaDevice device, CudaDevice::Find(*options.gpu));
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(device.ordinal));
  HB_ASSIGN_OR_RETURN(const MoeKernels* const kernels, MoeKernelsOf(device));
  HB_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create());
  HB_RETURN_IF_ERROR(CudaStatus(sm90::PrepareDense(), "products"));
  HB_ASSIGN_OR_RETURN(CudaWeights weights, CudaWeights::Load(source, device, options, on_part));
  HB_ASSIGN_OR_RETURN(CudaStepMemory memory,
                      CudaStepMemory::Create(config, *kernels, options.batch_tokens,
                                             config.max_position_embeddings));
  std::unique_ptr<CudaModel> model(new CudaModel(config, options, context, std::move(device),
                                                 std::move(stream), std::move(weights),
                                                 std::move(memory)));
  const int64_t bytes = CudaLogitRows(options) * model->RowBytes();
  HB_ASSIGN_OR_RETURN(model->logits_, DeviceBuffer::Allocate(bytes, "logits"));
  HB_ASSIGN_OR_RETURN(model->host_logits_, PinnedBuffer::Allocate(bytes, "logits"));
  return model;
}

// Those of the longest memory serve all that are not longer.
Result<std::shared_ptr<const CudaRope>> CudaModel::RopeOf(int64_t positions) const {
  if (longest_rope_ == nullptr || longest_rope_->positions() < positions) {
    HB_ASSIGN_OR_RETURN(CudaRope made, CudaRope::Create(rope_, positions, context_.pool()));
    longest_rope_ = std::make_shared<const CudaRope>(std::move(made));
  }
  return longest_rope_;
}

Result<std::unique_ptr<KvMemory>> CudaModel::NewMemory(const KvPoolSizes& sizes) const {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(device_.ordinal));
  HB_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create(config_, options_.math));
  HB_ASSIGN_OR_RETURN(auto memory, CudaKvMemory::Create(layout, sizes, stream_.get()));
  CudaSteps& steps = memory->steps;
  steps.context =
      std::min(config_.max_position_embeddings, sizes.context_blocks * kContextBlockTokens);
  HB_ASSIGN_OR_RETURN(steps.rope, RopeOf(steps.context));
  // The largest tables: of a chunk that wants the logits of some, and of the most sequences.
  const int64_t sequences = std::min(sizes.state_slots, options_.batch_tokens);
  const StepSizes largest{{.tokens = {options_.batch_tokens + 1, options_.batch_tokens},
                           .context = {steps.context, steps.context}},
                          std::max(sequences, DecodeBucket(sequences).value_or(0))};
  const int64_t bytes = CudaStepTables(largest, nullptr).bytes();
  HB_ASSIGN_OR_RETURN(steps.host_tables, PinnedBuffer::Allocate(bytes, "tables of a step"));
  HB_ASSIGN_OR_RETURN(steps.tables, DeviceBuffer::Allocate(bytes, "tables of a step"));
  return memory;
}

// All that a step of these sizes does on the device, from the tables on the host to the logits on
// the device: eagerly, or while it is captured.
Status CudaModel::RunProgram(const StepSizes& sizes, CudaKvMemory& memory,
                             std::span<const PlacedItem> batch, const Watchers& watchers) {
  CudaSteps& steps = memory.steps;
  const CudaStepTables tables(sizes, steps.tables.data());
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(steps.tables.data(), steps.host_tables.data(),
                      static_cast<size_t>(tables.bytes()), cudaMemcpyHostToDevice, stream_.get()),
      "tables of a step"));
  const CudaOps::Step step{.tables = tables,
                           .shape = sizes.shape,
                           .cache = memory,
                           .rope = *steps.rope,
                           .logits = logits_.as<float>(),
                           .wait = watchers.meter != nullptr};
  ops_.Begin(step);
  const ProgramOptions program{.rounding = Rounding::kBf16, .observer = watchers.observer};
  if (watchers.meter == nullptr) {
    HB_RETURN_IF_ERROR(RunDeepseekV4(config_, program, sizes.shape, ops_));
  } else {
    MeteredOps metered(ops_, memory.layout(), batch, *watchers.meter);
    HB_RETURN_IF_ERROR(RunDeepseekV4(config_, program, sizes.shape, metered));
  }
  return ops_.status();
}

// The first step of its sizes runs eagerly, which also loads its kernels; then it is captured.
Status CudaModel::RunGraph(const StepSizes& sizes, CudaKvMemory& memory) {
  std::map<StepSizes, CudaGraph>& graphs = memory.steps.graphs;
  if (const auto found = graphs.find(sizes); found != graphs.end()) {
    return found->second.Launch(stream_);
  }
  const auto run = [&] { return RunProgram(sizes, memory, {}, {}); };
  HB_RETURN_IF_ERROR(run());
  HB_ASSIGN_OR_RETURN(CudaGraph graph, CudaGraph::Capture(stream_, run));
  graphs.emplace(sizes, std::move(graph));
  return {};
}

Result<MatrixView<const float>> CudaModel::Run(KvMemory& any, std::span<const PlacedItem> batch,
                                               const Watchers& watchers) {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(device_.ordinal));
  auto& memory = static_cast<CudaKvMemory&>(any);
  const StepSizes exact = StepSizes::Of(batch);
  const int64_t rows = exact.shape.count(TokenSet::kWanted);
  if (rows > logit_rows()) {
    return MakeError("a step that wants {} rows of logits; memory is kept for {}", rows,
                     logit_rows());
  }
  const bool watched = watchers.observer != nullptr || watchers.meter != nullptr;
  std::optional<StepSizes> padded;
  if (options_.graphs && !watched) {
    padded = DecodeSizes(config_, exact, std::min(options_.batch_tokens, logit_rows()),
                         memory.steps.context);
  }
  const StepSizes sizes = padded.value_or(exact);
  CudaStepTables(sizes, memory.steps.host_tables.data()).Fill(batch);
  HB_RETURN_IF_ERROR(padded ? RunGraph(sizes, memory) : RunProgram(sizes, memory, batch, watchers));
  if (rows > 0) {
    HB_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(host_logits_.data(), logits_.data(), static_cast<size_t>(rows * RowBytes()),
                        cudaMemcpyDeviceToHost, stream_.get()),
        "logits"));
  }
  HB_RETURN_IF_ERROR(stream_.Synchronize());
  return MatrixView<const float>{host_logits_.as<float>(), rows, config_.vocab_size};
}

// Of a device that has failed: none.
MoeCounters CudaModel::moe_counters(int64_t layer) const {
  CudaMoeCounters read;
  const auto scope = CudaDeviceScope::Enter(device_.ordinal);
  const CudaMoeCounters* const counters = weights_.moe(layer).counters;
  if (counters == nullptr || !scope ||
      cudaMemcpy(&read, counters, sizeof(read), cudaMemcpyDeviceToHost) != cudaSuccess) {
    return {};
  }
  return HostCounters(read);
}

Result<std::unique_ptr<DeviceModel>> LoadCudaModel(const WeightSource& source,
                                                   const TransformerOptions& options,
                                                   const Context& context,
                                                   const LoadListener& on_part) {
  return CudaModel::Load(source, options, context, on_part);
}

}  // namespace halfbyte
