// The experts of a layer in the form that the fast kernels read (packed_matrix.h), in one
// piece of memory with huge pages asked for. Immutable after Pack.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/zeroed_memory.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/packed_linear/packed_matrix.h"
#include "moe/expert_weights.h"

namespace halfbyte {

struct PackedExpert {
  PackedMatrix gate, up, down;
};

class PackedExperts {
 public:
  // Packs expert after expert, each by all threads of the pool; `packed(e)` is called when the
  // stored bytes of local expert e are not needed any more. Nothing: not all matrices have the same
  // packed form, or one has none, such as MXFP4 with too wide a range of scales (`packed` may have
  // been called for those before it). Errors name the expert by its global id: a bad scale byte, no
  // memory.
  static Result<std::optional<PackedExperts>> Pack(ThreadPool& pool,
                                                   const std::vector<ExpertWeights>& experts,
                                                   const ExpertPlacement& placement,
                                                   const std::function<void(LocalExpert)>& packed,
                                                   std::string_view name);

  PackedFormat format() const { return format_; }  // of all matrices
  const PackedExpert& operator[](LocalExpert e) const {
    return experts_[static_cast<size_t>(Index(e))];
  }

 private:
  PackedFormat format_ = PackedFormat::kFourBit;
  ZeroedMemory memory_;
  std::vector<PackedExpert> experts_;
};

}  // namespace halfbyte
