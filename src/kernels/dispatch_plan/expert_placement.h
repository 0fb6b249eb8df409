// Which rank owns which expert. Global ids count the experts of the layer, local ids those of one
// rank; they are different types, and only this class converts one into the other.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace halfbyte {

enum class GlobalExpert : int32_t {};
enum class LocalExpert : int32_t {};

constexpr int32_t Index(GlobalExpert e) { return static_cast<int32_t>(e); }
constexpr int32_t Index(LocalExpert e) { return static_cast<int32_t>(e); }

class ExpertPlacement {
 public:
  // All experts on one rank.
  static ExpertPlacement Single(int32_t experts);

  // Contiguous ranges, balanced: the first experts % ranks ranks own one expert more (EP-02).
  // Errors: experts < 1, ranks < 1, rank outside [0, ranks).
  static Result<ExpertPlacement> Balanced(int32_t experts, int32_t ranks, int32_t rank);

  // owners[e] is the rank of global expert e; local ids follow the global order. Errors: an owner
  // outside [0, ranks), an empty table, rank outside [0, ranks).
  static Result<ExpertPlacement> Table(std::vector<int32_t> owners, int32_t ranks, int32_t rank);

  int32_t experts() const { return static_cast<int32_t>(owners_.size()); }
  int32_t local_experts() const { return static_cast<int32_t>(globals_.size()); }
  int32_t ranks() const { return ranks_; }
  int32_t rank() const { return rank_; }

  int32_t owner(GlobalExpert e) const { return owners_[static_cast<size_t>(Index(e))]; }
  GlobalExpert ToGlobal(LocalExpert e) const { return globals_[static_cast<size_t>(Index(e))]; }

  // `id` as it stands in topk_ids: any integer. Nothing for experts of other ranks and for markers
  // on either side of the range, -1 and experts() alike (RTE-02).
  std::optional<LocalExpert> ToLocal(int32_t id) const {
    if (id < 0 || id >= experts() || locals_[static_cast<size_t>(id)] < 0) return std::nullopt;
    return LocalExpert{locals_[static_cast<size_t>(id)]};
  }

  // The local part of a list over all experts, in local order (EP-01). Error: another length.
  Result<std::vector<float>> LocalPart(std::span<const float> of_all_experts) const;

 private:
  std::vector<int32_t> owners_;        // by global id
  std::vector<int32_t> locals_;        // by global id; -1: another rank's
  std::vector<GlobalExpert> globals_;  // by local id
  int32_t ranks_ = 1;
  int32_t rank_ = 0;
};

}  // namespace halfbyte
