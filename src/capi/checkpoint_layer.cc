#include "capi/moe_handles.h"
#include "model/checkpoint_weights.h"
#include "moe/cpu_expert_layer.h"
#include "moe/cuda/cuda_expert_layer.h"

namespace halfbyte {

Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromParts(RoutedLayerParts parts,
                                                           const LayerOptions& options) {
  auto handle = std::make_unique<halfbyte_moe_layer>();
  handle->gpu = options.gpu;
  handle->threads = options.gpu ? 0 : options.threads;
  HB_ASSIGN_OR_RETURN(handle->experts,
                      options.gpu ? CreateCudaExpertLayer(std::move(parts), *options.gpu)
                                  : CreateCpuExpertLayer(std::move(parts), options.threads));
  return handle;
}

Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromCheckpoint(const char* directory,
                                                                int64_t layer,
                                                                const LayerOptions& options) {
  HB_ASSIGN_OR_RETURN(ModelCheckpoint opened, ModelCheckpoint::Open(directory));
  auto checkpoint = std::make_unique<ModelCheckpoint>(std::move(opened));
  const ModelConfig& config = checkpoint->config();
  if (layer < 0 || layer >= config.layer_count()) {
    return MakeError("{}: layer {} of a model whose layers are 0..{}", directory, layer,
                     config.layer_count() - 1);
  }
  HB_ASSIGN_OR_RETURN(const ExpertPlacement placement, options.Placement(config.routed_experts));
  const CheckpointWeights source(*checkpoint);  // until the layer has been made
  HB_ASSIGN_OR_RETURN(RoutedLayerParts parts,
                      LoadRoutedLayer(source, layer, options.routed, placement));
  HB_ASSIGN_OR_RETURN(auto handle, LayerFromParts(std::move(parts), options));
  handle->checkpoint = std::move(checkpoint);
  return handle;
}

}  // namespace halfbyte
