#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/faulty_kernel.h"
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

TEST(CudaDevice, AnErrorThatStaysIsOfEarlierWork) {
  const Status failed = CudaStatus(cudaErrorIllegalAddress, "hidden");
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().kind, ErrorKind::kDevice);
  EXPECT_EQ(failed.error().message.find("hidden"), std::string::npos) << failed.error().message;
  EXPECT_NE(failed.error().message.find("before this call"), std::string::npos);
  EXPECT_EQ(CudaStatus(cudaErrorMemoryAllocation, "x").error().kind, ErrorKind::kMemory);
  EXPECT_EQ(CudaStatus(cudaErrorInvalidValue, "x").error().kind, ErrorKind::kDevice);
}

// Each of these ends what its process can do on the GPU, so it runs in one of its own.
class GpuDeathTest : public GpuTest {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    GpuTest::SetUp();
  }
  void TearDown() override { ::unsetenv("HALFBYTE_CUDA_CHECK"); }

  [[noreturn]] static void End(const Status& status) {
    const bool device = !status && status.error().kind == ErrorKind::kDevice;
    std::fprintf(stderr, "%s\n", status ? "no error" : status.error().message.c_str());
    std::_Exit(device ? 0 : 1);
  }
};

TEST_F(GpuDeathTest, AFaultComesOutOfALaterCallAsEarlierWork) {
  const auto run = [&] {
    EXPECT_EQ(LaunchFaultyKernel(stream.get()), cudaSuccess);
    if (stream.Synchronize()) End({});
    const auto buffer = DeviceBuffer::Allocate(16, "experts");
    if (buffer) End({});
    if (buffer.error().kind != ErrorKind::kDevice) std::_Exit(2);
    const auto scope = CudaDeviceScope::Enter(0);
    End(scope ? Status() : tl::unexpected(scope.error()));
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "before this call.*illegal memory access");
}

TEST_F(GpuDeathTest, TheCheckNamesTheKernelInTheCallThatLaunchedIt) {
  ::setenv("HALFBYTE_CUDA_CHECK", "1", 1);
  EXPECT_EXIT(End(CudaStatus(LaunchFaultyKernel(stream.get()), "step")), testing::ExitedWithCode(0),
              "step, kernel .*FaultyKernel.*: .*illegal memory access");
}

TEST_F(GpuTest, MoreMemoryThanThereIsIsAnErrorWithNumbers) {
  const auto buffer = DeviceBuffer::Allocate(int64_t{1} << 45, "experts");
  ASSERT_FALSE(buffer.has_value());
  EXPECT_EQ(buffer.error().kind, ErrorKind::kMemory);
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
