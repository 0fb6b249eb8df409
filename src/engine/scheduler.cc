#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace halfbyte {
namespace {

constexpr int64_t kSnapshotInterval = 4096;  // tokens of a prefill
constexpr int64_t kSmallestPrefill = 128;    // tokens that every step has left beside decoding

constexpr int64_t RoundDown(int64_t value, int64_t unit) { return value / unit * unit; }

}  // namespace

Scheduler::Scheduler(const ExecutorLimits& limits, const SchedulerOptions& options)
    : limits_(limits),
      options_(options),
      pages_(limits.pools, limits.window),
      cache_(pages_, options.prefix_cache) {}

Result<std::unique_ptr<Scheduler>> Scheduler::Create(const ExecutorLimits& limits,
                                                     const SchedulerOptions& options) {
  std::unique_ptr<Scheduler> scheduler(new Scheduler(limits, options));
  HB_RETURN_IF_ERROR(scheduler->CheckLimits());
  return scheduler;
}

Status Scheduler::CheckLimits() const {
  const int64_t sequences = options_.max_sequences;
  const int64_t batch = options_.max_batch_tokens;
  if (sequences < 1) return MakeError("max_num_seqs is {}; at least 1 is needed", sequences);
  if (batch < sequences + kSmallestPrefill || batch > limits_.batch_tokens) {
    return MakeError(
        "max_num_batched_tokens is {}; {} running sequences need {} + {} = {}, and the model takes "
        "at most {} in one step",
        batch, sequences, sequences, kSmallestPrefill, sequences + kSmallestPrefill,
        limits_.batch_tokens);
  }
  const KvPoolSizes& pools = limits_.pools;
  const int64_t window_pages =
      KvPoolSizes::WindowPages(sequences, batch, pools.tails, limits_.window);
  if (pools.state_slots < sequences || pools.window_pages < window_pages) {
    return MakeError(
        "{} sequences need as many state slots and {} window pages; there are {} and {}", sequences,
        window_pages, pools.state_slots, pools.window_pages);
  }
  if (limits_.replay_tokens < limits_.window - 1) {
    return MakeError("replays of {} tokens leave a window of {} incomplete", limits_.replay_tokens,
                     limits_.window);
  }
  const int64_t fits = pools.context_blocks * kContextBlockTokens;
  if (limits_.max_model_len < 2 || limits_.max_model_len > fits) {
    return MakeError(
        "max_model_len is {}; one sequence of that length must fit into {} context blocks of {} "
        "tokens: use 2 to {}, or more memory",
        limits_.max_model_len, pools.context_blocks, kContextBlockTokens, fits);
  }
  return {};
}

void Scheduler::Add(ScheduledRequest request) {
  const RequestId id = request.id;
  HB_CHECK(!request.prompt.empty() && request.n >= 1 &&
               std::ssize(request.prompt) <= limits_.max_model_len,
           "request {}: {} tokens, n {}", id, request.prompt.size(), request.n);
  HB_CHECK(requests_.empty() || requests_.rbegin()->first < id, "request {} came late", id);
  RequestEntry& added = requests_[id];
  added.request = std::move(request);
  added.unfinished = added.request.draws ? added.request.n : 1;
  for (int32_t choice = 0; choice < added.unfinished; ++choice) {
    Entry& entry = entries_[{id, choice}];
    entry.request = &added;
  }
  entries_.at({id, 0}).tokens = added.request.prompt;
  waiting_.insert({id, 0});
}

StepPlan Scheduler::Next() {
  HB_CHECK(!in_flight_, "step {} has not been advanced", steps_);
  StepPlan plan = std::exchange(next_, {});
  PlanDecodes(plan);
  PlanPrefills(plan);
  AdmitWaiting(plan);
  if (plan.empty()) {
    next_ = std::move(plan);
    return {};
  }
  plan.number = ++steps_;
  in_flight_ = plan;
  return plan;
}

void Scheduler::PlanDecodes(StepPlan& plan) {
  const std::vector<SequenceId> ids(running_.begin(), running_.end());
  for (const SequenceId id : ids) {
    Entry& entry = entries_.at(id);
    if (!entry.life.decoding() || !MakeRoomToDecode(id, entry)) continue;
    PlanChunk(id, entry, plan);
  }
}

// Oldest first, so the oldest always gets its block: the youngest give way.
bool Scheduler::MakeRoomToDecode(SequenceId id, Entry& entry) {
  const Sequence& sequence = entry.life.memory().sequence;
  const bool full =
      sequence.position() == std::ssize(sequence.pages().context_blocks) * kContextBlockTokens;
  while (full && !cache_.MakeFree(1)) {
    const SequenceId youngest = *running_.rbegin();
    Preempt(youngest);
    if (youngest == id) return false;
  }
  return true;
}

void Scheduler::Preempt(SequenceId id) {
  Entry& entry = entries_.at(id);
  entry.life.Preempt();
  running_.erase(id);
  waiting_.insert(id);
  ++counts_.preemptions;
  ++entry.request->counts.preemptions;
}

void Scheduler::PlanPrefills(StepPlan& plan) {
  for (const SequenceId id : running_) {
    Entry& entry = entries_.at(id);
    if (entry.life.prefilling()) PlanChunk(id, entry, plan);
  }
}

bool Scheduler::AnotherMayRun() const { return std::ssize(running_) < options_.max_sequences; }

void Scheduler::AdmitWaiting(StepPlan& plan) {
  while (!waiting_.empty() && AnotherMayRun() && plan.tokens() < options_.max_batch_tokens) {
    const SequenceId id = *waiting_.begin();
    if (!Admit(id, plan)) return;  // nobody overtakes the head
    PlanChunk(id, entries_.at(id), plan);
  }
}

bool Scheduler::Admit(SequenceId id, StepPlan& plan) {
  Entry& entry = entries_.at(id);
  const ScheduledRequest& request = entry.request->request;
  const int64_t tokens = std::ssize(entry.tokens);
  // The last token is always computed: its logits are wanted.
  const int64_t limit = request.prompt_logits ? 0 : tokens - 1;
  // For the whole prompt and the token that follows it.
  const int64_t whole = std::min(tokens + 1, limits_.max_model_len);
  const int64_t blocks = (whole + kContextBlockTokens - 1) / kContextBlockTokens;
  if (cache_.available() + limit / kContextBlockTokens < blocks) return false;  // even if all hits
  PrefixCache::Match match =
      cache_.Find(request.cache_salt, entry.tokens, limit, limits_.replay_tokens);
  if (!cache_.MakeFree(blocks - match.chain.tokens() / kContextBlockTokens)) return false;
  auto sequence = Start(match);
  HB_CHECK(sequence, "{} run: {}", running_.size(), sequence.error().message);
  const Status reserved = pages_.ReserveContext(*sequence, whole);
  HB_CHECK(reserved, "{}", reserved.error().message);
  const int64_t hit = sequence->position();
  if (match.snapshot != nullptr) {
    plan.restores.push_back({sequence->pages().slot, hit, match.snapshot->tail()});
  }
  entry.life.Admit({std::move(match.chain), *std::move(sequence)},
                   match.found_tokens > hit ? match.found_tokens : 0);
  waiting_.erase(id);
  running_.insert(id);
  counts_.cache_missed_snapshot_tokens += match.found_tokens - hit;
  if (RequestCounts& counts = entry.request->counts; !counts.admitted) {
    counts.admitted = true;
    counts.cached_tokens = hit;
    counts_.cache_queried_tokens += tokens;
    counts_.cache_hit_tokens += hit;
  }
  return true;
}

Result<Sequence> Scheduler::Start(const PrefixCache::Match& match) {
  if (match.snapshot != nullptr) return pages_.Continue(*match.snapshot);
  if (match.chain.tokens() == 0) return pages_.NewSequence();
  return pages_.Replay(match.chain.context_blocks(), limits_.replay_tokens);
}

// The next position at which a snapshot is due while the prompt lasts.
int64_t Scheduler::NextSnapshot(Entry& entry, int64_t position) const {
  int64_t next = RoundDown(position, kSnapshotInterval) + kSnapshotInterval;
  for (const int64_t due :
       {entry.life.branch_point(), RoundDown(std::ssize(entry.tokens), kContextBlockTokens)}) {
    if (due > position) next = std::min(next, due);
  }
  return next;
}

// As many of the sequence's tokens as the step has room for.
void Scheduler::PlanChunk(SequenceId id, Entry& entry, StepPlan& plan) {
  Sequence& sequence = entry.life.memory().sequence;
  const int64_t position = sequence.position();
  int64_t count = std::min(entry.left(), options_.max_batch_tokens - plan.tokens());
  if (entry.life.prefilling() && options_.prefix_cache) {
    count = std::min(count, NextSnapshot(entry, position) - position);
  }
  if (count == 0) return;
  const Status reserved = pages_.Reserve(sequence, count);
  HB_CHECK(reserved, "{}", reserved.error().message);
  PlanItem item{.sequence = id, .pages = &sequence.pages()};
  const auto first = entry.tokens.begin() + position;
  item.tokens.assign(first, first + count);
  const ScheduledRequest& request = entry.request->request;
  const bool last = count == entry.left();
  if (last && request.draws) {
    item.logits = LogitsWanted::kLast;
    const bool starts = std::ssize(entry.tokens) == std::ssize(request.prompt);
    for (int32_t choice = 0; starts && choice < request.n; ++choice) {
      item.drawing_choices.push_back(choice);
    }
    if (!starts) item.drawing_choices = {id.choice};
  }
  if (request.prompt_logits && position < std::ssize(request.prompt)) {
    item.logits = LogitsWanted::kAll;
  }
  plan.items.push_back(std::move(item));
}

void Scheduler::Advance(const StepResult& result) {
  HB_CHECK(in_flight_, "no step is in flight after step {}", steps_);
  const StepPlan plan = *std::exchange(in_flight_, std::nullopt);
  std::span<const DrawnToken> drawn(result);
  for (const PlanItem& item : plan.items) {
    const size_t count = item.drawing_choices.size();
    HB_CHECK(drawn.size() >= count, "{} draws for {}", drawn.size(), ToString(plan));
    AdvanceItem(item, drawn.first(count));
    drawn = drawn.subspan(count);
  }
  HB_CHECK(drawn.empty(), "{} draws too many for {}", drawn.size(), ToString(plan));
}

void Scheduler::AdvanceItem(const PlanItem& item, std::span<const DrawnToken> drawn) {
  Entry& entry = entries_.at(item.sequence);
  pages_.Advance(entry.life.memory().sequence, std::ssize(item.tokens));
  CompleteBlocks(entry);
  if (entry.life.prefilling() && entry.left() == 0) entry.life.PromptDone();
  for (size_t i = 0; i < drawn.size(); ++i) {
    const SequenceId expected{item.sequence.request, item.drawing_choices[i]};
    HB_CHECK(drawn[i].sequence == expected && (drawn[i].token || drawn[i].finished),
             "choice {} of request {}", expected.choice, expected.request);
  }
  // Other choices first: they copy what this one has.
  for (const DrawnToken& other : drawn) {
    if (other.sequence == item.sequence) continue;
    if (other.finished) {
      Finish(other.sequence);
    } else {
      ForkOrQueue(other.sequence, entry, *other.token);
    }
  }
  const auto own = std::ranges::find(drawn, item.sequence, &DrawnToken::sequence);
  if (own != drawn.end() && !own->finished) {
    entry.tokens.push_back(*own->token);
  } else if (own != drawn.end() || (!entry.request->request.draws && entry.left() == 0)) {
    Finish(item.sequence);
  }
}

void Scheduler::CompleteBlocks(Entry& entry) {
  HeldMemory& memory = entry.life.memory();
  const int64_t position = memory.sequence.position();
  if (position < memory.sequence.pages().replay_end) return;  // the chain is ahead of it
  cache_.Extend(memory.chain, memory.sequence,
                std::span(entry.tokens).first(static_cast<size_t>(position)));
  if (position % kContextBlockTokens != 0) return;
  const bool rolling = entry.life.decoding();
  const bool due = rolling || position % kSnapshotInterval == 0 ||
                   position == entry.life.branch_point() ||
                   position == RoundDown(std::ssize(entry.tokens), kContextBlockTokens);
  if (!due) return;
  if (const auto save = cache_.TakeSnapshot(memory.chain, memory.sequence, rolling)) {
    next_.saves.push_back(*save);
  }
}

void Scheduler::ForkOrQueue(SequenceId id, Entry& from, int32_t token) {
  Entry& entry = entries_.at(id);
  HeldMemory& memory = from.life.memory();
  entry.tokens = from.tokens;
  entry.tokens.push_back(token);
  if (AnotherMayRun() && cache_.MakeFree(1)) {
    auto fork = pages_.Fork(memory.sequence, next_.copies);
    HB_CHECK(fork, "{}", fork.error().message);
    entry.life.Fork({memory.chain.Clone(), *std::move(fork)});
    running_.insert(id);
  } else {
    waiting_.insert(id);
  }
}

void Scheduler::Finish(SequenceId id) {
  RequestEntry& request = *entries_.at(id).request;
  entries_.erase(id);
  running_.erase(id);
  waiting_.erase(id);
  if (--request.unfinished == 0) requests_.erase(id.request);
}

bool Scheduler::Cancel(RequestId request) {
  HB_CHECK(!in_flight_, "request {} is cancelled within a step", request);
  if (!requests_.contains(request)) return false;
  const auto begin = entries_.lower_bound({request, 0});
  std::vector<SequenceId> ids;
  for (auto it = begin; it != entries_.end() && it->first.request == request; ++it) {
    ids.push_back(it->first);
  }
  for (const SequenceId id : ids) Finish(id);
  return true;
}

Scheduler::RequestCounts Scheduler::CountsOf(RequestId request) const {
  return requests_.at(request).counts;
}

SchedulerCounts Scheduler::Counts() const {
  SchedulerCounts counts = counts_;
  counts.waiting = std::ssize(waiting_);
  counts.running = std::ssize(running_);
  counts.pool_sizes = pages_.sizes();
  const KvPoolSizes free = pages_.free();
  counts.pool_used = {counts.pool_sizes.context_blocks - free.context_blocks,
                      counts.pool_sizes.window_pages - free.window_pages,
                      counts.pool_sizes.state_slots - free.state_slots,
                      counts.pool_sizes.tails - free.tails};
  counts.context_blocks_referenced =
      counts.pool_used.context_blocks - (cache_.cached_blocks() - cache_.held_blocks());
  return counts;
}

}  // namespace halfbyte
