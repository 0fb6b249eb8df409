// What benches of kernels on a GPU share: whatever fails ends them.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"

namespace halfbyte {

template <class T>
T Must(Result<T> result) {
  HB_CHECK(result.has_value(), "{}", result.error().message);
  return *std::move(result);
}
inline void Must(const Status& status) {
  HB_CHECK(status.has_value(), "{}", status.error().message);
}
inline void Must(cudaError_t error) { Must(CudaStatus(error, "bench")); }

template <class T>
DeviceBuffer Upload(const std::vector<T>& values) {
  return Must(
      DeviceBuffer::Upload(values.data(), std::ssize(values) * int64_t{sizeof(T)}, "input"));
}

// launch(0) to launch(launches - 1).
inline CudaGraph GraphOf(const CudaStream& stream, int64_t launches,
                         const std::function<cudaError_t(int64_t)>& launch) {
  return Must(CudaGraph::Capture(stream, [&]() -> Status {
    for (int64_t i = 0; i < launches; ++i) HB_RETURN_IF_ERROR(CudaStatus(launch(i), "launch"));
    return {};
  }));
}

namespace internal {

class GraphClock {
 public:
  GraphClock(const CudaStream& stream, const CudaGraph& graph) : stream_(stream), graph_(graph) {}
  double Seconds() const {  // of one launch
    Must(start_.Record(stream_));
    Must(graph_.Launch(stream_));
    Must(end_.Record(stream_));
    return Must(CudaEvent::Seconds(start_, end_));
  }

 private:
  const CudaStream& stream_;
  const CudaGraph& graph_;
  const CudaEvent start_ = Must(CudaEvent::Create()), end_ = Must(CudaEvent::Create());
};

inline double MedianMicroseconds(std::vector<double> seconds) {
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle * 1e6;
}

}  // namespace internal

// The median of six runs of the graph after a pause and two others.
inline double ShortMicroseconds(const CudaStream& stream, const CudaGraph& graph,
                                std::chrono::milliseconds pause) {
  const internal::GraphClock clock(stream, graph);
  std::this_thread::sleep_for(pause);
  std::vector<double> seconds;
  for (int i = 0; i < 8; ++i) seconds.push_back(clock.Seconds());
  return internal::MedianMicroseconds({seconds.begin() + 2, seconds.end()});
}

// Of the second half of so many seconds without a pause, which the board's power limit slows down.
inline double SteadyMicroseconds(const CudaStream& stream, const CudaGraph& graph, double load) {
  const internal::GraphClock clock(stream, graph);
  std::vector<double> seconds;
  for (double all = 0; all < load; all += seconds.back()) seconds.push_back(clock.Seconds());
  return internal::MedianMicroseconds({seconds.begin() + std::ssize(seconds) / 2, seconds.end()});
}

// The median of `runs`, an odd number; before each all of `other` is written, which is larger than
// the L2 cache.
inline double ColdMicroseconds(const CudaStream& stream, const CudaGraph& graph,
                               const DeviceBuffer& other, int runs) {
  const internal::GraphClock clock(stream, graph);
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    Must(cudaMemsetAsync(other.data(), i, static_cast<size_t>(other.bytes()), stream.get()));
    seconds.push_back(clock.Seconds());
  }
  return internal::MedianMicroseconds(std::move(seconds));
}

}  // namespace halfbyte
