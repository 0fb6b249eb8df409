// Bytes that were read and not yet used.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace halfbyte {

class ReadBuffer {
 public:
  std::string_view data() const { return {bytes_.data() + begin_, end_ - begin_}; }

  // Where the next `size` bytes may be written; then Commit says how many were.
  std::span<char> Room(size_t size) {
    if (bytes_.size() - end_ < size) {
      if (begin_ > 0) std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      if (bytes_.size() < end_ + size) bytes_.resize(end_ + size);
    }
    return {bytes_.data() + end_, size};
  }
  void Commit(size_t size) { end_ += size; }
  void Consume(size_t size) { begin_ += size; }

  // Gives memory back, if nothing is in it.
  void Release() {
    if (begin_ == end_) *this = ReadBuffer();
  }

 private:
  std::vector<char> bytes_;
  size_t begin_ = 0, end_ = 0;  // what is in use of bytes_
};

}  // namespace halfbyte
