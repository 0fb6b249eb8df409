#include "measure/cuda/cuda_limits.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <functional>
#include <memory>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "measure/cuda/limit_kernels.h"
#include "measure/median.h"

namespace halfbyte {
namespace {

constexpr int kPasses = 7;
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

// Median seconds of `work`, after one run that is not counted.
Result<double> MedianSeconds(const CudaStream& stream, const std::function<Status()>& work) {
  HB_ASSIGN_OR_RETURN(const CudaEvent start, CudaEvent::Create());
  HB_ASSIGN_OR_RETURN(const CudaEvent end, CudaEvent::Create());
  HB_RETURN_IF_ERROR(work());
  std::vector<double> seconds;
  for (int i = 0; i < kPasses; ++i) {
    HB_RETURN_IF_ERROR(start.Record(stream));
    HB_RETURN_IF_ERROR(work());
    HB_RETURN_IF_ERROR(end.Record(stream));
    HB_ASSIGN_OR_RETURN(const double passed, CudaEvent::Seconds(start, end));
    seconds.push_back(passed);
  }
  return Median(seconds);
}

Status LtStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return MakeError("cuBLASLt: {} failed with status {}", what, static_cast<int>(status));
}

}  // namespace

Result<double> CudaReadRate(const CudaStream& stream, const std::byte* memory, int64_t bytes) {
  HB_ASSIGN_OR_RETURN(const DeviceBuffer sink, DeviceBuffer::Allocate(16, "read limit"));
  HB_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stream, [&] {
                        return CudaStatus(
                            LaunchRead(memory, bytes, sink.as<uint32_t>(), stream.get()),
                            "read limit");
                      }));
  return static_cast<double>(bytes / 16 * 16) / seconds;
}

// cuBLASLt is loaded, not linked: the program runs where it is missing.
struct CudaBf16Product::State {
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  std::unique_ptr<void, Close> library;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  int64_t size = 0;
  DeviceBuffer a, b, c, workspace;

  ~State() {
    if (handle != nullptr) destroy(handle);
  }

  template <class Function>
  Status Find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(library.get(), name));
    if (function == nullptr) return MakeError("cuBLASLt: it has no {}", name);
    return {};
  }
  Status Open();
};

Status CudaBf16Product::State::Open() {
  library.reset(dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL));
  if (!library) return MakeError("cuBLASLt: {}", dlerror());
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  HB_RETURN_IF_ERROR(Find("cublasLtCreate", create));
  HB_RETURN_IF_ERROR(Find("cublasLtDestroy", destroy));
  HB_RETURN_IF_ERROR(Find("cublasLtMatmul", matmul));
  HB_RETURN_IF_ERROR(Find("cublasLtMatmulDescCreate", create_product));
  HB_RETURN_IF_ERROR(Find("cublasLtMatmulDescSetAttribute", set));
  HB_RETURN_IF_ERROR(Find("cublasLtMatrixLayoutCreate", create_layout));
  HB_RETURN_IF_ERROR(Find("cublasLtMatmulPreferenceCreate", create_preference));
  HB_RETURN_IF_ERROR(Find("cublasLtMatmulPreferenceSetAttribute", set_preference));
  HB_RETURN_IF_ERROR(Find("cublasLtMatmulPreferenceDestroy", destroy_preference));
  HB_RETURN_IF_ERROR(Find("cublasLtMatmulAlgoGetHeuristic", choose));
  HB_RETURN_IF_ERROR(LtStatus(create(&handle), "cublasLtCreate"));
  HB_RETURN_IF_ERROR(
      LtStatus(create_product(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product"));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  HB_RETURN_IF_ERROR(LtStatus(
      set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)), "a product"));
  const auto n = static_cast<uint64_t>(size);
  HB_RETURN_IF_ERROR(LtStatus(create_layout(&layout, CUDA_R_16BF, n, n, size), "a layout"));
  cublasLtMatmulPreference_t preference = nullptr;
  HB_RETURN_IF_ERROR(LtStatus(create_preference(&preference), "a preference"));
  const auto most = static_cast<size_t>(kWorkspaceBytes);
  HB_RETURN_IF_ERROR(LtStatus(
      set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most)),
      "a preference"));
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t chosen =
      choose(handle, product, layout, layout, layout, layout, preference, 1, &found, &count);
  destroy_preference(preference);
  HB_RETURN_IF_ERROR(LtStatus(chosen, "choosing an algorithm"));
  if (count == 0) return MakeError("cuBLASLt: no algorithm for a bf16 product");
  algorithm = found.algo;
  return {};
}

CudaBf16Product::CudaBf16Product(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaBf16Product::~CudaBf16Product() = default;
CudaBf16Product::CudaBf16Product(CudaBf16Product&&) noexcept = default;
CudaBf16Product& CudaBf16Product::operator=(CudaBf16Product&&) noexcept = default;

Result<CudaBf16Product> CudaBf16Product::Create(int64_t size) {
  auto state = std::make_unique<State>();
  state->size = size;
  const int64_t count = size * size, bytes = 2 * count;
  HB_ASSIGN_OR_RETURN(state->a, DeviceBuffer::Allocate(bytes, "bf16 limit"));
  HB_ASSIGN_OR_RETURN(state->b, DeviceBuffer::Allocate(bytes, "bf16 limit"));
  HB_ASSIGN_OR_RETURN(state->c, DeviceBuffer::Allocate(bytes, "bf16 limit"));
  HB_ASSIGN_OR_RETURN(state->workspace, DeviceBuffer::Allocate(kWorkspaceBytes, "bf16 limit"));
  HB_RETURN_IF_ERROR(state->Open());
  HB_RETURN_IF_ERROR(CudaStatus(LaunchFillBf16(state->a.data(), count, 1, nullptr), "bf16 limit"));
  HB_RETURN_IF_ERROR(CudaStatus(LaunchFillBf16(state->b.data(), count, 2, nullptr), "bf16 limit"));
  HB_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "bf16 limit"));
  return CudaBf16Product(std::move(state));
}

Result<double> CudaBf16Product::Rate(const CudaStream& stream) const {
  const State& s = *state_;
  HB_ASSIGN_OR_RETURN(
      const double seconds, MedianSeconds(stream, [&] {
        const float one = 1, zero = 0;
        return LtStatus(
            s.matmul(s.handle, s.product, &one, s.a.data(), s.layout, s.b.data(), s.layout, &zero,
                     s.c.data(), s.layout, s.c.data(), s.layout, &s.algorithm, s.workspace.data(),
                     static_cast<size_t>(kWorkspaceBytes), stream.get()),
            "a product");
      }));
  const auto n = static_cast<double>(s.size);
  return 2 * n * n * n / seconds;
}

}  // namespace halfbyte
