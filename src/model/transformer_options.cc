#include "model/transformer_options.h"

namespace halfbyte {

Result<ExpertPlacement> PlaceExperts(const ModelConfig& config, const TransformerOptions& options) {
  const auto experts = static_cast<int32_t>(config.routed_experts);
  if (options.communicator == nullptr) return ExpertPlacement::Single(experts);
  const int32_t ranks = options.communicator->size();
  const int32_t rank = options.communicator->rank();
  const std::vector<int32_t>& owners = options.expert_owners;
  if (owners.empty()) return ExpertPlacement::Balanced(experts, ranks, rank);
  if (std::ssize(owners) != experts) {
    return MakeError("a placement of {} experts for a model with {}", owners.size(), experts);
  }
  return ExpertPlacement::Table(owners, ranks, rank);
}

}  // namespace halfbyte
