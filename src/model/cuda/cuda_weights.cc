#include "model/cuda/cuda_weights.h"

#include <utility>

#include "base/check.h"
#include "checkpoint/inventory.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "model/load_routed_layer.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

template <class Weight>
const Weight& Find(const std::unordered_map<ModuleKey, Weight>& weights, const ModuleKey& key) {
  const auto found = weights.find(key);
  HB_CHECK(found != weights.end(), "a program wants {}, which its model does not have",
           Describe(key));
  return found->second;
}

// What LoadRoutedLayer reads.
bool IsOfRoutedExperts(Module module) {
  return IsRoutedExpert(module) || module == Module::kRouterBias || module == Module::kRouterTable;
}

std::vector<float> Decoded(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.columns));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    DequantizeRow(matrix, r, values.data() + r * matrix.columns);
  }
  return values;
}

// The form that LaunchPackDense takes, without bytes. Error: there is none.
Result<sm90::StoredDense> FormOf(const StoredWeight& weight, int64_t groups) {
  const WeightMatrix& w = weight.matrix;
  sm90::StoredDense form{.rows = w.rows, .columns = w.columns, .groups = groups};
  if (w.format == WeightFormat::kBf16) {
    form.format = sm90::DenseFormat::kBf16;
  } else if (w.format == WeightFormat::kF32 || w.format == WeightFormat::kF16) {
    form.format = sm90::DenseFormat::kF32;  // exactly
  } else if (w.format == WeightFormat::kFp8 && w.scale_block_rows == 128 &&
             w.scale_block_columns == 128 &&
             (w.scale_dtype == DType::kF8E8m0 || w.scale_dtype == DType::kF32)) {
    form.format = sm90::DenseFormat::kFp8;
    form.scale = w.scale_dtype == DType::kF32 ? sm90::DenseScale::kF32 : sm90::DenseScale::kE8m0;
  } else {
    return MakeError(
        "{}: a GPU computes with bf16, fp32 and FP8 in blocks of 128 x 128, and not with {} as it "
        "is stored here; run the model on the CPU",
        weight.name, StoredFormatName(weight.format));
  }
  return form;
}

// The same with its bytes on the device.
struct Uploaded {
  sm90::StoredDense stored;
  DeviceBuffer data, scales;
};

Result<Uploaded> Upload(const StoredWeight& weight, int64_t groups) {
  const WeightMatrix& w = weight.matrix;
  Uploaded uploaded;
  HB_ASSIGN_OR_RETURN(uploaded.stored, FormOf(weight, groups));
  const auto upload = [&](const void* bytes, int64_t count) {
    return DeviceBuffer::Upload(bytes, count, weight.name);
  };
  if (w.format == WeightFormat::kF16) {
    const std::vector<float> values = Decoded(w);
    HB_ASSIGN_OR_RETURN(uploaded.data,
                        upload(values.data(), std::ssize(values) * int64_t{sizeof(float)}));
  } else {
    const int64_t elements = w.rows * w.row_bytes();
    HB_ASSIGN_OR_RETURN(uploaded.data, upload(w.data, elements));
    HB_ASSIGN_OR_RETURN(uploaded.scales, upload(w.scales, w.bytes() - elements));
  }
  uploaded.stored.data = uploaded.data.data();
  uploaded.stored.scales = uploaded.scales.data();
  return uploaded;
}

int64_t GroupsOf(const ModelConfig& config, const ModuleKey& key) {
  return key.module == Module::kOA ? config.o_groups : 1;
}

}  // namespace

Result<CudaWeights> CudaWeights::Load(const WeightSource& source, const CudaDevice& device,
                                      const TransformerOptions& options,
                                      const LoadListener& on_part) {
  const ModelConfig& config = source.config();
  CudaWeights weights;
  weights.config_ = &config;
  std::vector<ModuleKey> global;
  std::vector<std::vector<ModuleKey>> of_layers(static_cast<size_t>(config.layer_count()));
  for (const ModuleKey& key : RequiredModules(config)) {
    if (IsOfRoutedExperts(key.module)) continue;
    (key.scope == Scope::kGlobal ? global : of_layers[static_cast<size_t>(key.layer)])
        .push_back(key);
  }
  for (const ModuleKey& key : global) HB_RETURN_IF_ERROR(weights.Add(source, key));
  on_part(-1);
  for (int64_t l = 0; l < config.layer_count(); ++l) {
    for (const ModuleKey& key : of_layers[static_cast<size_t>(l)]) {
      HB_RETURN_IF_ERROR(weights.Add(source, key));
    }
    HB_RETURN_IF_ERROR(weights.AddMoe(source, device, options, l));
    on_part(l);
  }
  return weights;
}

Result<int64_t> CudaWeights::BytesOf(const ModelConfig& config, const ModuleKey& key,
                                     const StoredWeight& unread) {
  if (key.module == Module::kEmbed) {
    return unread.matrix.rows * unread.matrix.columns * int64_t{sizeof(Bf16)};
  }
  const int64_t groups = GroupsOf(config, key);
  HB_ASSIGN_OR_RETURN(const sm90::StoredDense form, FormOf(unread, groups));
  return sm90::PackedBytes(form.format, form.rows, form.columns, groups);
}

template <class T>
Result<const T*> CudaWeights::Keep(const std::vector<T>& values, std::string_view what) {
  HB_ASSIGN_OR_RETURN(
      DeviceBuffer buffer,
      DeviceBuffer::Upload(values.data(), std::ssize(values) * int64_t{sizeof(T)}, what));
  device_bytes_ += buffer.bytes();
  memory_.push_back(std::move(buffer));
  return memory_.back().as<const T>();
}

Status CudaWeights::Add(const WeightSource& source, const ModuleKey& key) {
  if (!IsMatrix(key.module) && !IsHyperConnectionMatrix(key.module)) {
    HB_ASSIGN_OR_RETURN(const std::vector<float> values, source.Vector(key));
    HB_ASSIGN_OR_RETURN(vectors_[key], Keep(values, Describe(key)));
    return {};
  }
  HB_ASSIGN_OR_RETURN(const StoredWeight stored, source.Matrix(key));
  if (IsHyperConnectionMatrix(key.module)) {
    HB_ASSIGN_OR_RETURN(vectors_[key], Keep(Decoded(stored.matrix), stored.name));
  } else if (key.module == Module::kEmbed) {
    std::vector<Bf16> rows;
    for (const float x : Decoded(stored.matrix)) rows.push_back(ToBf16(x));
    HB_ASSIGN_OR_RETURN(embeddings_[key], Keep(rows, stored.name));
  } else {
    HB_RETURN_IF_ERROR(AddMatrix(stored, key));
  }
  stored.DropPages();
  return {};
}

Status CudaWeights::AddMatrix(const StoredWeight& stored, const ModuleKey& key) {
  const int64_t groups = GroupsOf(*config_, key);
  HB_ASSIGN_OR_RETURN(const Uploaded uploaded, Upload(stored, groups));
  const sm90::StoredDense& from = uploaded.stored;
  HB_ASSIGN_OR_RETURN(
      DeviceBuffer packed,
      DeviceBuffer::Allocate(sm90::PackedBytes(from.format, from.rows, from.columns, groups),
                             stored.name));
  const int32_t none = 0;
  HB_ASSIGN_OR_RETURN(const DeviceBuffer unfit,
                      DeviceBuffer::Upload(&none, sizeof(none), stored.name));
  HB_RETURN_IF_ERROR(CudaStatus(
      sm90::LaunchPackDense(from, packed.data(), unfit.as<int32_t>(), nullptr), stored.name));
  int32_t count = 0;
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(&count, unfit.data(), sizeof(count), cudaMemcpyDeviceToHost), stored.name));
  if (count > 0) {
    return MakeError(
        "{}: {} scales or codes are not what a GPU computes with exactly (powers of two from "
        "2^-117 "
        "to 2^7, no NaN); run the model on the CPU",
        stored.name, count);
  }
  matrices_[key] = {from.format, from.rows, from.columns, groups, packed.data()};
  device_bytes_ += packed.bytes();
  memory_.push_back(std::move(packed));
  return {};
}

Status CudaWeights::AddMoe(const WeightSource& source, const CudaDevice& device,
                           const TransformerOptions& options, int64_t layer) {
  const auto placement = ExpertPlacement::Single(static_cast<int32_t>(config_->routed_experts));
  HB_ASSIGN_OR_RETURN(const RoutedLayerParts parts,
                      LoadRoutedLayer(source, layer,
                                      {.arithmetic = options.arithmetic,
                                       .activation_scales = options.activation_scales},
                                      placement));
  HB_ASSIGN_OR_RETURN(CudaMoeLayer routed,
                      CudaMoeLayer::Create(device, parts.params, placement, parts.experts,
                                           parts.name, parts.release));
  device_bytes_ += routed.device_bytes();
  const auto shared = [&](Module module) { return matrix(ModuleKey::Layer(layer, module)); };
  CudaMoeBlock block{.routed = std::move(routed),
                     .shared_gate = shared(Module::kSharedGate),
                     .shared_up = shared(Module::kSharedUp),
                     .shared_down = shared(Module::kSharedDown),
                     .swiglu = parts.params.swiglu,
                     .router = parts.routing.params};
  if (parts.routing.by_token_id()) {
    HB_ASSIGN_OR_RETURN(block.router_table, Keep(parts.routing.table, "router table"));
  } else if (!parts.routing.bias.empty()) {
    HB_ASSIGN_OR_RETURN(block.router_bias, Keep(parts.routing.bias, "router bias"));
  }
  if (options.arithmetic == Arithmetic::kW4a4) {
    HB_ASSIGN_OR_RETURN(const auto* counters,
                        Keep(std::vector<CudaMoeCounters>(1), "counters of experts"));
    block.counters = const_cast<CudaMoeCounters*>(counters);
  }
  moe_.push_back(std::move(block));
  return {};
}

const sm90::DenseWeight& CudaWeights::matrix(const ModuleKey& key) const {
  return Find(matrices_, key);
}
const Bf16* CudaWeights::embedding(const ModuleKey& key) const { return Find(embeddings_, key); }
const float* CudaWeights::vector(const ModuleKey& key) const { return Find(vectors_, key); }

DeviceHyperConnection CudaWeights::hyper_connection(const HyperConnectionKeys& keys) const {
  return {.fn = vector(keys.fn),
          .base = vector(keys.base),
          .scale = vector(keys.scale),
          .streams = static_cast<int>(config_->hc_streams),
          .sinkhorn_iterations = static_cast<int>(config_->hc_sinkhorn_iterations),
          .eps = static_cast<float>(config_->hc_eps),
          .norm_eps = static_cast<float>(config_->rms_norm_eps)};
}

}  // namespace halfbyte
