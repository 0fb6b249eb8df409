// Where kernels run. A kernel's contract function takes a Context first and picks the variant for
// its device and instruction set; model code only passes it on. Today the device is the CPU.
#pragma once

#include "base/thread_pool.h"
#include "device/cpu_isa.h"

namespace halfbyte {

class Context {
 public:
  explicit Context(ThreadPool& pool, CpuIsa isa = BestCpuIsa()) : pool_(&pool), isa_(isa) {}

  ThreadPool& pool() const { return *pool_; }
  CpuIsa isa() const { return isa_; }

 private:
  ThreadPool* pool_;
  CpuIsa isa_;
};

}  // namespace halfbyte
