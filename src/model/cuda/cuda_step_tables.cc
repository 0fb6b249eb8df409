#include "model/cuda/cuda_step_tables.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "paging/kv_pages.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

int64_t PagesFor(int64_t positions, int64_t page) { return (positions + page - 1) / page; }

// The tables are read-only to everybody but Fill.
int32_t* Writable(const int32_t* table) { return const_cast<int32_t*>(table); }

void FillRow(const std::vector<int32_t>& pages, int64_t stride, int32_t* row) {
  const auto count = std::min(std::ssize(pages), stride);
  std::fill(std::copy_n(pages.begin(), count, row), row + stride, 0);
}

}  // namespace

StepSizes StepSizes::Of(std::span<const PlacedItem> batch) {
  StepSizes sizes{.sequences = std::ssize(batch)};
  auto& [all, wanted] = sizes.shape.tokens;
  auto& [longest, longest_wanted] = sizes.shape.context;
  for (const PlacedItem& item : batch) {
    const int64_t end = item.pages->position + std::ssize(item.tokens);
    all += std::ssize(item.tokens);
    longest = std::max(longest, end);
    if (item.logits_rows() == 0) continue;
    wanted += item.logits_rows();
    longest_wanted = std::max(longest_wanted, end);
  }
  return sizes;
}

CudaStepTables::CudaStepTables(const StepSizes& sizes, std::byte* memory)
    : sizes_(sizes), memory_(reinterpret_cast<int32_t*>(memory)) {
  const auto tokens_of = [&](int64_t count) {
    return DeviceTokens{.count = count,
                        .positions = Take(count),
                        .sequences = Take(count),
                        .token_ids = Take(count)};
  };
  all_ = tokens_of(sizes.shape.count(TokenSet::kAll));
  if (!sizes.all_wanted()) {
    wanted_ = tokens_of(sizes.shape.count(TokenSet::kWanted));
    wanted_.source_rows = Take(wanted_.count);
  }
  const int64_t n = sizes.sequences, longest = sizes.shape.longest(TokenSet::kAll);
  sequences_.count = n;
  for (const int32_t** of_each :
       {&sequences_.first_rows, &sequences_.tokens, &sequences_.first_positions, &sequences_.slots,
        &sequences_.replay_starts, &sequences_.replay_ends}) {
    *of_each = Take(n);
  }
  sequences_.context_stride = PagesFor(longest, kContextBlockTokens);
  sequences_.context_blocks = Take(n * sequences_.context_stride);
  sequences_.window_stride = PagesFor(longest, kWindowPageTokens);
  sequences_.window_pages = Take(n * sequences_.window_stride);
}

int32_t* CudaStepTables::Take(int64_t count) {
  int32_t* const taken = memory_ == nullptr ? nullptr : memory_ + words_;
  words_ += RoundUp(count, 4);
  return taken;
}

void CudaStepTables::FillTokens(DeviceTokens tokens, int64_t at, int64_t sequence, int64_t position,
                                std::span<const int32_t> ids, int64_t source_row) {
  for (const int32_t id : ids) {
    Writable(tokens.positions)[at] = static_cast<int32_t>(position++);
    Writable(tokens.sequences)[at] = static_cast<int32_t>(sequence);
    Writable(tokens.token_ids)[at] = id;
    if (tokens.source_rows != nullptr) {
      Writable(tokens.source_rows)[at] = static_cast<int32_t>(source_row++);
    }
    ++at;
  }
}

void CudaStepTables::Fill(std::span<const PlacedItem> batch) {
  int64_t rows = 0, wanted_rows = 0;
  for (int64_t i = 0; i < std::ssize(batch); ++i) {
    const PlacedItem& item = batch[static_cast<size_t>(i)];
    const SequencePages& pages = *item.pages;
    const int64_t count = std::ssize(item.tokens), wanted = item.logits_rows();
    Writable(sequences_.first_rows)[i] = static_cast<int32_t>(rows);
    Writable(sequences_.tokens)[i] = static_cast<int32_t>(count);
    Writable(sequences_.first_positions)[i] = static_cast<int32_t>(pages.position);
    Writable(sequences_.slots)[i] = pages.slot;
    Writable(sequences_.replay_starts)[i] = static_cast<int32_t>(pages.replay_start);
    Writable(sequences_.replay_ends)[i] = static_cast<int32_t>(pages.replay_end);
    FillRow(pages.context_blocks, sequences_.context_stride,
            Writable(sequences_.context_blocks) + i * sequences_.context_stride);
    FillRow(pages.window_pages, sequences_.window_stride,
            Writable(sequences_.window_pages) + i * sequences_.window_stride);
    FillTokens(all_, rows, i, pages.position, item.tokens, 0);
    if (!sizes_.all_wanted() && wanted > 0) {
      FillTokens(wanted_, wanted_rows, i, pages.position + count - wanted,
                 item.tokens.last(static_cast<size_t>(wanted)), rows + count - wanted);
    }
    rows += count;
    wanted_rows += wanted;
  }
  HB_CHECK(sizes_.all_wanted() || (rows == all_.count && wanted_rows == wanted_.count),
           "{} tokens of {}, {} wanted of {}", rows, all_.count, wanted_rows, wanted_.count);
  for (; rows < all_.count; ++rows) {
    constexpr int32_t kNoToken = 0;
    FillTokens(all_, rows, 0, -1, {&kNoToken, 1}, 0);
  }
  for (int64_t i = std::ssize(batch); i < sequences_.count; ++i) {
    for (const int32_t* of_each :
         {sequences_.first_rows, sequences_.tokens, sequences_.first_positions, sequences_.slots,
          sequences_.replay_starts, sequences_.replay_ends}) {
      Writable(of_each)[i] = 0;
    }
    FillRow({}, sequences_.context_stride,
            Writable(sequences_.context_blocks) + i * sequences_.context_stride);
    FillRow({}, sequences_.window_stride,
            Writable(sequences_.window_pages) + i * sequences_.window_stride);
  }
}

}  // namespace halfbyte
