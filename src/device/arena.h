// Memory for the intermediate results of one step, handed out in order and taken back all at once.
// After Reserve, or the first step of the largest size, nothing is allocated any more. Where memory
// is short std::bad_alloc is thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/tensor_view.h"

namespace halfbyte {

class Arena {
 public:
  // Uninitialized elements, aligned to 64 bytes, valid until Reset or the end of an enclosing
  // Scope.
  template <class T>
  T* Take(int64_t count) {
    return static_cast<T*>(TakeBytes(count * int64_t{sizeof(T)}));
  }
  template <class T = float>
  MatrixView<T> Matrix(int64_t rows, int64_t columns) {
    return {Take<T>(rows * columns), rows, columns};
  }

  // Memory for as much as a step will take, so that it takes no more later; throws std::bad_alloc.
  void Reserve(int64_t bytes);
  void Reset();  // everything is taken back

  // What was taken inside is taken back at its end.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), block_(arena.block_), used_(arena.used_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    const size_t block_;
    const int64_t used_;
  };

  int64_t capacity_bytes() const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    int64_t size = 0;
  };

  void* TakeBytes(int64_t bytes);
  void AddBlock(int64_t bytes);

  std::vector<Block> blocks_;
  size_t block_ = 0;  // the one in use
  int64_t used_ = 0;  // bytes of it
};

}  // namespace halfbyte
