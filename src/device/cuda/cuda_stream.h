// Streams, events and captured graphs with owners.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "base/result.h"

namespace halfbyte {

class CudaStream {
 public:
  // One that does not wait for the default stream.
  static Result<CudaStream> Create();
  cudaStream_t get() const { return stream_.get(); }
  // Waits until everything in the stream is done; the error of whatever failed in it.
  Status Synchronize() const;

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

class CudaEvent {
 public:
  static Result<CudaEvent> Create() { return CreateWith(cudaEventDefault); }
  // One that takes no time of the device to record, and none can be read off it.
  static Result<CudaEvent> CreateUntimed() { return CreateWith(cudaEventDisableTiming); }
  Status Record(const CudaStream& stream) const { return Record(stream.get()); }
  Status Record(cudaStream_t stream) const;
  // For capture: each replay of the graph records the event anew.
  Status RecordInGraph(const CudaStream& stream) const;
  // Whether what was recorded last is done, or nothing was; does not wait.
  Result<bool> IsDone() const;
  // Waits for both; the time between them.
  static Result<double> Seconds(const CudaEvent& start, const CudaEvent& end);

 private:
  static Result<CudaEvent> CreateWith(unsigned flags);

  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

// Work recorded once and replayed any number of times; what it reads and writes must outlive it.
class CudaGraph {
 public:
  // Records what `work` puts into the stream; nothing runs yet. An error of `work`, or of the
  // capture (work that synchronizes or allocates), is returned.
  static Result<CudaGraph> Capture(const CudaStream& stream, const std::function<Status()>& work);
  Status Launch(const CudaStream& stream) const;

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  std::unique_ptr<CUgraphExec_st, Destroy> graph_;
};

}  // namespace halfbyte
