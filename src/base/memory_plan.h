// What a command is about to take, item by item: asked for before anything is loaded, so that what
// does not fit ends with a sentence and not with the kernel killing the process half-way.
//
//   MemoryPlan plan;
//   plan.Add("packed weights", bytes);
//   plan.AddMapped("checkpoint", file_bytes);
//   HB_RETURN_IF_ERROR(plan.Check(ReadAvailableMemory(), "DIR", "give a smaller --context"));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/available_memory.h"
#include "base/result.h"

namespace halfbyte {

class MemoryPlan {
 public:
  // Memory that must stay, and files mapped read-only, whose pages the kernel drops when it needs
  // their room. Several items of a name are one. Nothing of zero bytes is named.
  void Add(std::string_view what, int64_t bytes) { Add(what, bytes, /*mapped=*/false); }
  void AddMapped(std::string_view what, int64_t bytes) { Add(what, bytes, /*mapped=*/true); }

  int64_t resident_bytes() const { return Sum(/*mapped=*/false); }
  int64_t mapped_bytes() const { return Sum(/*mapped=*/true); }

  // "12.40 GB (packed weights 11.00 GB, KV cache 1.40 GB) and 13.10 GB of mapped files"
  std::string Describe() const;

  // Error (kMemory): what is needed and of what parts, what there is and where, and the remedy:
  // "give a smaller --context". `subject` needs it: a directory, a flag.
  Status Check(const AvailableMemory& available, std::string_view subject,
               std::string_view remedy) const;

 private:
  struct Item {
    std::string what;
    int64_t bytes;
    bool mapped;
  };

  void Add(std::string_view what, int64_t bytes, bool mapped);
  int64_t Sum(bool mapped) const;

  std::vector<Item> items_;
};

}  // namespace halfbyte
