// Packs an expert of a checkpoint into the layout of sm90_layout.h, and back, on the host.
// Nothing is lost: codes and block scales come back as they were, except that codes under a zero
// scale come back as zeros. Global scales stay beside the bytes.
#pragma once

#include <cstdint>

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

// out: shape().bytes() bytes. Shapes belong together and block scales are 0x00..0x7e. Parallel over
// strips. What LaunchPackExpert (pack_expert.h) does on a GPU, byte for byte.
void PackExpert(ThreadPool& pool, const Nvfp4Expert& expert, uint8_t* out);

struct UnpackedExpert {
  Nvfp4Matrix gate;
  Nvfp4Matrix up;
  Nvfp4Matrix down;
};
// The inverse; all global scales are 1.
UnpackedExpert UnpackExpert(const ExpertShape& shape, const uint8_t* packed);

}  // namespace halfbyte::sm90
