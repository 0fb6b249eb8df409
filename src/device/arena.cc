#include "device/arena.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMinBlock = int64_t{1} << 20;

}  // namespace

void Arena::Free::operator()(std::byte* data) const { std::free(data); }

void* Arena::TakeBytes(int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const int64_t size = std::max({bytes, kMinBlock, capacity_bytes()});
    void* data = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    HB_CHECK(data != nullptr, "out of memory: {} bytes of workspace", size);
    blocks_.push_back({std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(data)), size});
    used_ = 0;
  }
  void* result = blocks_[block_].data.get() + used_;
  used_ += bytes;
  return result;
}

void Arena::Reset() {
  block_ = 0;
  used_ = 0;
}

int64_t Arena::capacity_bytes() const {
  int64_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

}  // namespace halfbyte
