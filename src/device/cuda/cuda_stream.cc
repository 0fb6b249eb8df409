#include "device/cuda/cuda_stream.h"

#include "device/cuda/cuda_device.h"

namespace halfbyte {

Result<CudaStream> CudaStream::Create() {
  cudaStream_t stream = nullptr;
  HB_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "CUDA stream"));
  CudaStream owner;
  owner.stream_.reset(stream);
  return owner;
}

Status CudaStream::Synchronize() const {
  return CudaStatus(cudaStreamSynchronize(get()), "work on the GPU");
}

Result<CudaEvent> CudaEvent::CreateWith(unsigned flags) {
  cudaEvent_t event = nullptr;
  HB_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, flags), "CUDA event"));
  CudaEvent owner;
  owner.event_.reset(event);
  return owner;
}

Status CudaEvent::Record(cudaStream_t stream) const {
  return CudaStatus(cudaEventRecord(event_.get(), stream), "CUDA event");
}

Result<bool> CudaEvent::IsDone() const {
  const cudaError_t state = cudaEventQuery(event_.get());
  if (state == cudaErrorNotReady) return false;
  HB_RETURN_IF_ERROR(CudaStatus(state, "work on the GPU"));
  return true;
}

Status CudaEvent::RecordInGraph(const CudaStream& stream) const {
  return CudaStatus(cudaEventRecordWithFlags(event_.get(), stream.get(), cudaEventRecordExternal),
                    "CUDA event");
}

Result<double> CudaEvent::Seconds(const CudaEvent& start, const CudaEvent& end) {
  HB_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(start.event_.get()), "work on the GPU"));
  HB_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end.event_.get()), "work on the GPU"));
  float milliseconds = 0;
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaEventElapsedTime(&milliseconds, start.event_.get(), end.event_.get()), "CUDA event"));
  return double{milliseconds} * 1e-3;
}

Result<CudaGraph> CudaGraph::Capture(const CudaStream& stream,
                                     const std::function<Status()>& work) {
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "CUDA capture"));
  const Status done = work();
  cudaGraph_t graph = nullptr;
  const cudaError_t captured = cudaStreamEndCapture(stream.get(), &graph);
  HB_RETURN_IF_ERROR(done);
  HB_RETURN_IF_ERROR(CudaStatus(captured, "CUDA capture"));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  HB_RETURN_IF_ERROR(CudaStatus(made, "CUDA graph"));
  CudaGraph owner;
  owner.graph_.reset(executable);
  return owner;
}

Status CudaGraph::Launch(const CudaStream& stream) const {
  return CudaStatus(cudaGraphLaunch(graph_.get(), stream.get()), "CUDA graph");
}

}  // namespace halfbyte
