#include "engine/fake_executor.h"

#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace halfbyte {
namespace {

constexpr int64_t kQuarter = 4;  // tokens per compressed row of the two kinds
constexpr int64_t kHalf = 128;
constexpr int64_t kQuarters = kContextBlockTokens / kQuarter;
constexpr int64_t kHalves = kContextBlockTokens / kHalf;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

template <class T>
void CopyPage(std::vector<T>& pool, int64_t rows, const PageCopy& copy) {
  std::copy_n(pool.begin() + copy.from * rows, rows, pool.begin() + copy.to * rows);
}

std::string NameOf(SequenceId id) { return fmt::format("{}.{}", id.request, id.choice); }

}  // namespace

FakeExecutor::FakeExecutor(FakeOptions options) : options_(std::move(options)) {
  const KvPoolSizes& pools = options_.limits.pools;
  slot_positions_.assign(static_cast<size_t>(pools.state_slots), -1);
  if (options_.script) return;
  window_.resize(static_cast<size_t>(pools.window_pages * kWindowPageTokens));
  quarters_.resize(static_cast<size_t>(pools.context_blocks * kQuarters));
  halves_.resize(static_cast<size_t>(pools.context_blocks * kHalves));
  small_rings_.resize(static_cast<size_t>(pools.state_slots * 2 * kQuarter));
  large_rings_.resize(static_cast<size_t>(pools.state_slots * kHalf));
  tails_.resize(static_cast<size_t>(pools.tails * kQuarter));
}

Result<MatrixView<const float>> FakeExecutor::Run(const StepPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  if (++steps_ == options_.fail_at_step) return MakeError("fake: told to fail at step {}", steps_);
  for (const TailMove& move : plan.saves) MoveTail(move, /*restore=*/false);
  for (const PageCopy& copy : plan.copies) Copy(copy);
  for (const TailMove& move : plan.restores) MoveTail(move, /*restore=*/true);
  HB_RETURN_IF_ERROR(CheckPlan(plan));
  HB_RETURN_IF_ERROR(CheckPages(plan));
  logits_.clear();
  for (const PlanItem& item : plan.items) HB_RETURN_IF_ERROR(RunItem(item));
  const std::chrono::nanoseconds time = options_.step_time + plan.tokens() * options_.token_time;
  if (options_.wait) {
    options_.wait(time);
  } else if (time.count() > 0) {
    std::this_thread::sleep_until(start + time);
  }
  return MatrixView<const float>{logits_.data(), plan.logits_rows(), options_.limits.vocabulary};
}

Status FakeExecutor::CheckPlan(const StepPlan& plan) {
  std::set<SequenceId> seen;
  if (plan.tokens() > options_.limits.batch_tokens) {
    return MakeError("fake: {} tokens in a step of {}", plan.tokens(),
                     options_.limits.batch_tokens);
  }
  for (const PlanItem& item : plan.items) {
    const SequencePages& pages = *item.pages;
    const int64_t end = pages.position + std::ssize(item.tokens);
    int64_t& slot = slot_positions_[static_cast<size_t>(pages.slot)];
    if (item.tokens.empty() || !seen.insert(item.sequence).second) {
      return MakeError("fake: {} without tokens, or twice in a step", NameOf(item.sequence));
    }
    const bool fresh = pages.position == pages.replay_start;  // 0, where nothing is replayed
    if (!fresh && pages.position != slot) {
      return MakeError("fake: {} goes on at {}, its slot at {}", NameOf(item.sequence),
                       pages.position, slot);
    }
    if (end > options_.limits.max_model_len) {
      return MakeError("fake: {} reaches {} tokens of {}", NameOf(item.sequence), end,
                       options_.limits.max_model_len);
    }
    for (const int32_t id : item.tokens) {
      if (id < 0 || id >= options_.limits.vocabulary) {
        return MakeError("fake: {} has token {}", NameOf(item.sequence), id);
      }
    }
    slot = end;
  }
  return {};
}

// Pages written in this step belong to one sequence only.
Status FakeExecutor::CheckPages(const StepPlan& plan) {
  std::unordered_map<int32_t, int> users[3];
  for (const PlanItem& item : plan.items) {
    for (const int32_t page : item.pages->context_blocks) ++users[0][page];
    for (const int32_t page : item.pages->window_pages) {
      if (page >= 0) ++users[1][page];
    }
    ++users[2][item.pages->slot];
  }
  for (const PlanItem& item : plan.items) {
    const SequencePages& pages = *item.pages;
    const int64_t last = pages.position + std::ssize(item.tokens) - 1;
    const auto check = [&](int pool, const std::vector<int32_t>& table, int64_t unit,
                           int64_t first) -> Status {
      for (int64_t i = first / unit; i <= last / unit; ++i) {
        if (i >= std::ssize(table) || table[static_cast<size_t>(i)] < 0 ||
            users[pool][table[static_cast<size_t>(i)]] != 1) {
          return MakeError("fake: {} writes page {} of pool {}, which it lacks or shares",
                           NameOf(item.sequence), i, pool);
        }
      }
      return {};
    };
    HB_RETURN_IF_ERROR(check(0, pages.context_blocks, kContextBlockTokens,
                             std::max(pages.position, pages.replay_end)));
    HB_RETURN_IF_ERROR(check(1, pages.window_pages, kWindowPageTokens, pages.position));
    if (users[2][pages.slot] != 1) {
      return MakeError("fake: {} shares slot {}", NameOf(item.sequence), pages.slot);
    }
  }
  return {};
}

void FakeExecutor::Copy(const PageCopy& copy) {
  if (copy.pool == KvPool::kStateSlot) {
    slot_positions_[static_cast<size_t>(copy.to)] = slot_positions_[static_cast<size_t>(copy.from)];
  }
  if (options_.script) return;
  switch (copy.pool) {
    case KvPool::kContextBlock:
      CopyPage(quarters_, kQuarters, copy);
      return CopyPage(halves_, kHalves, copy);
    case KvPool::kWindowPage:
      return CopyPage(window_, kWindowPageTokens, copy);
    case KvPool::kStateSlot:
      CopyPage(small_rings_, 2 * kQuarter, copy);
      return CopyPage(large_rings_, kHalf, copy);
  }
}

void FakeExecutor::MoveTail(const TailMove& move, bool restore) {
  if (restore) slot_positions_[static_cast<size_t>(move.slot)] = move.position;
  if (options_.script) return;
  for (int64_t p = move.position - kQuarter; p < move.position; ++p) {
    Row& ring = small_rings_[static_cast<size_t>(move.slot * 2 * kQuarter + p % (2 * kQuarter))];
    Row& tail = tails_[static_cast<size_t>(move.tail * kQuarter + p % kQuarter)];
    (restore ? ring : tail) = restore ? tail : ring;
  }
}

Result<uint64_t> FakeExecutor::HashWindow(const SequencePages& pages, int64_t position,
                                          uint64_t Row::*part) const {
  // Tests spend much of their time here: page by page, and a sum whose terms wait for no other.
  uint64_t hash = 0;
  int64_t p = std::max(pages.replay_start, position - options_.limits.window + 1);
  while (p <= position) {
    const int64_t index = p / kWindowPageTokens;
    const int64_t end = std::min(position + 1, (index + 1) * kWindowPageTokens);
    const int32_t page = pages.window_pages[static_cast<size_t>(index)];
    const Row* row =
        page < 0 ? nullptr
                 : &window_[static_cast<size_t>(page * kWindowPageTokens + p % kWindowPageTokens)];
    for (; p < end; ++p, ++row) {
      if (row == nullptr || row->position != p) {
        return MakeError("fake: position {} reads window row {}, which is not there", position, p);
      }
      hash += Mix(static_cast<uint64_t>(p), row->*part);
    }
  }
  return hash;
}

Result<uint64_t> FakeExecutor::HashVisible(const SequencePages& pages, int64_t position) const {
  HB_ASSIGN_OR_RETURN(uint64_t hash, HashWindow(pages, position, &Row::second));
  const auto add = [&](const std::vector<Entry>& pool, int64_t rate) -> Status {
    const int64_t per_block = kContextBlockTokens / rate;
    for (int64_t e = 0; e < (position + 1) / rate; ++e) {
      const int32_t block = pages.context_blocks[static_cast<size_t>(e / per_block)];
      const Entry& entry = pool[static_cast<size_t>(block * per_block + e % per_block)];
      if (entry.number != e) {
        return MakeError(
            "fake: position {} reads compressed row {} of {} tokens, which is not "
            "there",
            position, e, rate);
      }
      hash = Mix(hash, entry.hash);
    }
    return {};
  };
  HB_RETURN_IF_ERROR(add(quarters_, kQuarter));
  HB_RETURN_IF_ERROR(add(halves_, kHalf));
  return hash;
}

Status FakeExecutor::PoolEntries(const SequencePages& pages, int64_t position) {
  const auto pool = [&](const std::vector<Row>& rings, int64_t ring_rows, int64_t first,
                        int64_t rate, std::vector<Entry>& entries) -> Status {
    uint64_t hash = 1;
    for (int64_t p = std::max<int64_t>(0, first); p <= position; ++p) {
      const Row& row = rings[static_cast<size_t>(pages.slot * ring_rows + p % ring_rows)];
      if (row.position != p) {
        return MakeError("fake: position {} pools ring row {}, which is not there", position, p);
      }
      hash = Mix(hash, row.second);
    }
    const int64_t e = position / rate;
    const int64_t per_block = kContextBlockTokens / rate;
    const int32_t block = pages.context_blocks[static_cast<size_t>(e / per_block)];
    entries[static_cast<size_t>(block * per_block + e % per_block)] = {e, hash};
    return {};
  };
  if ((position + 1) % kQuarter == 0) {
    HB_RETURN_IF_ERROR(
        pool(small_rings_, 2 * kQuarter, position - 2 * kQuarter + 1, kQuarter, quarters_));
  }
  if ((position + 1) % kHalf == 0) {
    HB_RETURN_IF_ERROR(pool(large_rings_, kHalf, position - kHalf + 1, kHalf, halves_));
  }
  return {};
}

Status FakeExecutor::WriteToken(const SequencePages& pages, int64_t position, int32_t token) {
  const int32_t page = pages.window_pages[static_cast<size_t>(position / kWindowPageTokens)];
  Row& row = window_[static_cast<size_t>(page * kWindowPageTokens + position % kWindowPageTokens)];
  row = {position, Mix(static_cast<uint64_t>(position), static_cast<uint64_t>(token)), 0};
  HB_ASSIGN_OR_RETURN(row.second, HashWindow(pages, position, &Row::first));
  const int64_t small = 2 * kQuarter;
  small_rings_[static_cast<size_t>(pages.slot * small + position % small)] = row;
  large_rings_[static_cast<size_t>(pages.slot * kHalf + position % kHalf)] = row;
  return position < pages.replay_end ? Status() : PoolEntries(pages, position);
}

Status FakeExecutor::RunItem(const PlanItem& item) {
  const auto width = static_cast<size_t>(options_.limits.vocabulary);
  const int64_t count = std::ssize(item.tokens);
  const int64_t first_row = count - item.logits_rows();
  const bool nan = options_.nan_row && options_.nan_row(item.sequence);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = item.pages->position + i;
    const int32_t token = item.tokens[static_cast<size_t>(i)];
    uint64_t hash = 0;
    if (!options_.script) {
      HB_RETURN_IF_ERROR(WriteToken(*item.pages, position, token));
      if (i >= first_row) {
        HB_ASSIGN_OR_RETURN(hash, HashVisible(*item.pages, position));
      }
    }
    if (i < first_row) continue;
    if (nan) {
      logits_.insert(logits_.end(), width, std::numeric_limits<float>::quiet_NaN());
    } else if (options_.script) {
      const int32_t follower = options_.script(item.sequence, position, token);
      logits_.insert(logits_.end(), width, -1e4f);
      logits_[logits_.size() - width + static_cast<size_t>(follower)] = 0;
    } else {
      PutLogits(hash);
    }
  }
  return {};
}

void FakeExecutor::PutLogits(uint64_t hash) {
  for (int64_t i = 0; i < options_.limits.vocabulary; ++i) {
    const uint64_t value = Mix(hash, static_cast<uint64_t>(i) + 1);
    logits_.push_back(static_cast<float>(value >> 40) * 0x1p-21f);  // 0 .. 8
  }
}

std::vector<float> FakeExecutor::LogitsAfter(std::span<const int32_t> tokens,
                                             const ExecutorLimits& limits) {
  // One sequence that has all pages it wants.
  FakeOptions options{.limits = limits};
  const int64_t count = std::ssize(tokens);
  SequencePages pages{.slot = 0};
  for (int64_t i = 0; i * kContextBlockTokens < count; ++i) {
    pages.context_blocks.push_back(static_cast<int32_t>(i));
  }
  for (int64_t i = 0; i * kWindowPageTokens < count; ++i) {
    pages.window_pages.push_back(static_cast<int32_t>(i));
  }
  options.limits.pools = {std::ssize(pages.context_blocks), std::ssize(pages.window_pages), 1, 0};
  options.limits.batch_tokens = count;
  options.limits.max_model_len = count;
  FakeExecutor fake(std::move(options));
  StepPlan plan;
  plan.items.push_back(
      {.pages = &pages, .tokens = {tokens.begin(), tokens.end()}, .logits = LogitsWanted::kLast});
  const auto logits = fake.Run(plan);
  HB_CHECK(logits, "{}", logits.error().message);
  return std::move(fake.logits_);
}

}  // namespace halfbyte
