// A layer's experts spread over ranks (moe-layer.md §2: no all-to-all, every rank sees all tokens).
//
//   slot values of the own experts -> every rank's slot values to every rank -> combine
//
// What travels are slot values, not sums: each is computed by one rank and moved bit by bit, and
// every rank adds them in the order of the token's choices. So `out` has the bits that one rank
// with all experts computes, in every arithmetic, for any number of ranks and any placement.
// The price: [slots, hidden] fp32 arrive at each rank, top_k times as much as partial sums would
// be. Callers for whom that is too much use MoeLayer::Run, whose `out` holds the own experts' part
// only, and Communicator::AllReduceSum: equal to the last bits, but not bit for bit, because fp32
// sums depend on their order.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "moe/moe_layer.h"

namespace halfbyte {

class ExpertExchange {
 public:
  // Buffers for calls within `limits`, shared by all layers like the workspace: twice [slots,
  // hidden] fp32. The communicator must outlive the exchange.
  ExpertExchange(Communicator& communicator, const MoeLimits& limits);

  // As MoeLayer::Run, but `out` is the sum over the experts of all ranks. The layer's placement
  // must be made for this rank, and hidden and routing must be the same on all ranks. Counters
  // count what this rank does: gate_up every token, down its own experts' rows. Error: another rank
  // failed, is gone or does something else.
  Status Run(const Context& context, const MoeLayer& layer, MatrixView<const float> hidden,
             const Routing& routing, MatrixView<float> out, MoeWorkspace& workspace,
             MoeCounters* counters = nullptr);

 private:
  // Sets counts_ and row_of_slot_.
  void Plan(const ExpertPlacement& placement, MatrixView<const int32_t> topk_ids);

  Communicator& communicator_;
  const MoeLimits limits_;
  std::vector<int64_t> counts_;       // slots by rank
  std::vector<int64_t> next_row_;     // by rank
  std::vector<int64_t> row_of_slot_;  // in all_; DispatchPlan::kNone: no expert
  std::unique_ptr<float[]> mine_;     // [slots, hidden]
  std::unique_ptr<float[]> all_;      // [slots, hidden], rank by rank, each in slot order
};

}  // namespace halfbyte
