// Packs the experts of a checkpoint into the layout of sm90_layout.h, once, at load; and back.
// Nothing is lost: codes and block scales come back as they were, except that codes under a zero
// scale come back as zeros. Global scales stay beside the bytes.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/sm90_moe/sm90_layout.h"
#include "tensor/nvfp4_matrix.h"

namespace halfbyte::sm90 {

// gate, up [intermediate, hidden] and down [hidden, intermediate].
struct Nvfp4Expert {
  Nvfp4View gate;
  Nvfp4View up;
  Nvfp4View down;

  ExpertShape shape() const { return {gate.k, gate.rows}; }
};

// Before packing, on host or device: an error naming the tensor and the position if a block scale
// is NaN or negative, or shapes do not belong together or are no multiples of 16. `name` is the
// expert's, "model.layers.0.ffn.experts.3" say.
Status CheckExpert(const Nvfp4Expert& expert, std::string_view name);

// out: shape().bytes() bytes. The expert has passed CheckExpert. Parallel over strips.
void PackExpert(ThreadPool& pool, const Nvfp4Expert& expert, uint8_t* out);

struct UnpackedExpert {
  Nvfp4Matrix gate;
  Nvfp4Matrix up;
  Nvfp4Matrix down;
};
// The inverse; all global scales are 1.
UnpackedExpert UnpackExpert(const ExpertShape& shape, const uint8_t* packed);

}  // namespace halfbyte::sm90
