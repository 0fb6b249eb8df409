// What tests on a GPU share: the skip without one, and arrays that start poisoned between guards.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"

namespace halfbyte {

// Derive a fixture from it, or use it as one.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = CudaDevice::Open();
    if (!opened) GTEST_SKIP() << "needs a GPU: " << opened.error().message;
    device = *std::move(opened);
    auto created = CudaStream::Create();
    ASSERT_TRUE(created.has_value()) << created.error().message;
    stream = *std::move(created);
  }

  // Waits for the stream; false, with a failure of the test, if something went wrong in it.
  bool Finish(cudaError_t launched) {
    EXPECT_EQ(launched, cudaSuccess) << cudaGetErrorString(launched);
    const Status done = stream.Synchronize();
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return launched == cudaSuccess && done.has_value();
  }
  bool Finish(const Status& launched) {
    EXPECT_TRUE(launched.has_value()) << launched.error().message;
    return launched.has_value() && Finish(cudaSuccess);
  }

  CudaDevice device;
  CudaStream stream;
};

// `count` elements of device memory. What is not uploaded holds 0xff bytes: NaN, -1.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count)
      : count_(count), bytes_(2 * kGuard + count * sizeof(T), kByte) {
    std::memset(bytes_.data() + kGuard, kPoison, count * sizeof(T));
    auto buffer = DeviceBuffer::Upload(bytes_.data(), std::ssize(bytes_), "array of a test");
    HB_CHECK(buffer.has_value(), "{}", buffer.error().message);
    buffer_ = *std::move(buffer);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Write(values); }

  T* data() const { return reinterpret_cast<T*>(buffer_.data() + kGuard); }
  size_t size() const { return count_; }

  void Write(const std::vector<T>& values) {
    HB_CHECK(values.size() == count_, "{} values for {}", values.size(), count_);
    const cudaError_t error =
        cudaMemcpy(data(), values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
    HB_CHECK(error == cudaSuccess, "{}", cudaGetErrorString(error));
    WaitForIt();
  }
  void Poison() const {
    cudaMemset(data(), kPoison, count_ * sizeof(T));
    WaitForIt();
  }

  // Also checks that nothing was written before or behind the array.
  std::vector<T> Read() {
    const cudaError_t error =
        cudaMemcpy(bytes_.data(), buffer_.data(), bytes_.size(), cudaMemcpyDeviceToHost);
    HB_CHECK(error == cudaSuccess, "{}", cudaGetErrorString(error));
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(bytes_[i], kByte) << kGuard - i << " bytes before an array";
      EXPECT_EQ(bytes_[bytes_.size() - kGuard + i], kByte) << i << " bytes behind an array";
    }
    std::vector<T> values(count_);
    std::memcpy(values.data(), bytes_.data() + kGuard, count_ * sizeof(T));
    return values;
  }

 private:
  // Copies and fills may end after their calls, and no stream of a test waits for them.
  static void WaitForIt() {
    const cudaError_t error = cudaStreamSynchronize(cudaStreamLegacy);
    HB_CHECK(error == cudaSuccess, "{}", cudaGetErrorString(error));
  }

  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kByte = 0xa5;
  static constexpr uint8_t kPoison = 0xff;

  size_t count_;
  std::vector<uint8_t> bytes_;
  DeviceBuffer buffer_;
};

}  // namespace halfbyte
