#include "device/arena.h"

#include <algorithm>
#include <new>
#include <utility>

#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMinBlock = int64_t{1} << 20;

}  // namespace

void Arena::Free::operator()(std::byte* data) const {
  ::operator delete(data, std::align_val_t(kAlignment));
}

void* Arena::TakeBytes(int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    AddBlock(std::max({bytes, kMinBlock, capacity_bytes()}));
    used_ = 0;
  }
  void* result = blocks_[block_].data.get() + used_;
  used_ += bytes;
  return result;
}

void Arena::AddBlock(int64_t bytes) {
  void* data = ::operator new(static_cast<size_t>(bytes), std::align_val_t(kAlignment));
  std::unique_ptr<std::byte, Free> owner(static_cast<std::byte*>(data));
  blocks_.push_back({std::move(owner), bytes});
}

void Arena::Reserve(int64_t bytes) {
  const int64_t missing = RoundUp(bytes, kAlignment) - capacity_bytes();
  if (missing > 0) AddBlock(missing);
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
