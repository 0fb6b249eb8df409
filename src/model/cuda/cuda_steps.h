// What steps over one memory's sequences keep from one to the next (cuda_model.h).
#pragma once

#include <map>
#include <memory>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/pinned_buffer.h"
#include "model/cuda/cuda_rope.h"
#include "model/cuda/cuda_step_tables.h"

namespace halfbyte {

struct CudaSteps {
  int64_t context = 0;  // no sequence gets longer
  std::shared_ptr<const CudaRope> rope;
  PinnedBuffer host_tables;  // CudaStepTables, and where they are copied to
  DeviceBuffer tables;
  std::map<StepSizes, CudaGraph> graphs;  // of steps of these sizes
};

}  // namespace halfbyte
