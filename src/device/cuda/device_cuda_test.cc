#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/gpu_test.h"

namespace halfbyte {
namespace {

TEST(CudaDevice, AnErrorSaysWhatFailedAndWhy) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "copy").has_value());
  const Status failed = CudaStatus(cudaErrorInvalidValue, "copy");
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().message, "copy: invalid argument (cudaErrorInvalidValue)");
}

TEST(CudaDevice, OtherArchitecturesAreRefusedWithTheirNumbers) {  // R132
  EXPECT_TRUE(CheckComputeCapability(0, "NVIDIA H200", 9, 0).has_value());
  const Status refused = CheckComputeCapability(2, "NVIDIA B200", 10, 0);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message,
            "GPU 2 is a NVIDIA B200 of compute capability 10.0, but the CUDA kernels are compiled "
            "for 9.0 only (H100, H200)");
  EXPECT_FALSE(CheckComputeCapability(0, "NVIDIA A100", 8, 0).has_value());
  EXPECT_FALSE(CheckComputeCapability(0, "NVIDIA L40", 8, 9).has_value());
}

TEST_F(GpuTest, RefusesADeviceThatIsNotThere) {
  const auto missing = CudaDevice::Open(64);
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("no GPU 64"), std::string::npos);
}

TEST_F(GpuTest, MoreMemoryThanThereIsIsAnErrorWithNumbers) {
  const auto buffer = DeviceBuffer::Allocate(int64_t{1} << 45, "experts");
  ASSERT_FALSE(buffer.has_value());
  EXPECT_NE(buffer.error().message.find("experts: 35184372088832 bytes"), std::string::npos);
  EXPECT_TRUE(DeviceBuffer::Allocate(16, "after it").has_value());
}

TEST_F(GpuTest, AGraphRunsWhenItIsLaunched) {
  const std::vector<uint8_t> zeros(256, 0);
  const auto buffer = DeviceBuffer::Upload(zeros.data(), 256, "test");
  ASSERT_TRUE(buffer.has_value());
  const auto graph = CudaGraph::Capture(stream, [&] {
    return CudaStatus(cudaMemsetAsync(buffer->data(), 7, 256, stream.get()), "set");
  });
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  std::vector<uint8_t> read(256, 9);
  const auto copy = [&] { cudaMemcpy(read.data(), buffer->data(), 256, cudaMemcpyDeviceToHost); };
  copy();
  EXPECT_EQ(read, zeros);
  ASSERT_TRUE(graph->Launch(stream).has_value());
  ASSERT_TRUE(stream.Synchronize().has_value());
  copy();
  EXPECT_EQ(read, std::vector<uint8_t>(256, 7));
}

TEST_F(GpuTest, ACaptureThatWaitsIsAnError) {
  const auto graph = CudaGraph::Capture(stream, [&]() -> Status {
    return CudaStatus(cudaStreamSynchronize(stream.get()), "waiting");
  });
  EXPECT_FALSE(graph.has_value());
  (void)cudaGetLastError();
}

}  // namespace
}  // namespace halfbyte
