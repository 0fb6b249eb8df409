#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace halfbyte {
namespace {

constexpr int64_t kSnapshotInterval = 4096;  // tokens of a prefill
constexpr int64_t kSmallestPrefill = 128;    // tokens that every step has left beside decoding

constexpr int64_t kSmallestShare = 32;  // of a client's prompts, where many share a step

constexpr int64_t RoundDown(int64_t value, int64_t unit) { return value / unit * unit; }

// The most that each gets when `budget` is shared evenly and nobody takes more than it wants.
int64_t EvenShare(std::vector<int64_t> wants, int64_t budget) {
  std::ranges::sort(wants);
  int64_t sharing = std::ssize(wants);
  for (const int64_t want : wants) {
    if (want * sharing > budget) return budget / sharing;
    budget -= want;
    --sharing;
  }
  return std::numeric_limits<int64_t>::max();
}

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
  const auto [known, is_new] = clients_.try_emplace(added.request.client);
  added.client = &known->second;
  if (is_new) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const auto& [other, client] : clients_) {
      if (&client != added.client) least = std::min(least, client.served);
    }
    added.client->served = clients_.size() > 1 ? least : 0;
  }
  ++added.client->requests;
  added.unfinished = added.request.draws ? added.request.n : 1;
  for (int32_t choice = 0; choice < added.unfinished; ++choice) {
    Entry& entry = entries_[{id, choice}];
    entry.request = &added;
  }
  entries_.at({id, 0}).tokens = added.request.prompt;
  Wait({id, 0});
}

void Scheduler::Wait(SequenceId id) {
  entries_.at(id).client().waiting.insert(id);
  ++counts_.waiting;
}

void Scheduler::Run(SequenceId id) {
  Client& client = entries_.at(id).client();
  counts_.waiting -= static_cast<int64_t>(client.waiting.erase(id));
  client.running.insert(id);
  running_.insert(id);
}

StepPlan Scheduler::Next() {
  HB_CHECK(!in_flight_, "step {} has not been advanced", steps_);
  StepPlan plan = std::exchange(next_, {});
  // First who gives way, then what is computed: nothing that is planned is taken back.
  ShareSlots();
  ShareBlocks();
  MakeRoomToDecode();
  PlanDecodes(plan);
  AdmitWaiting(plan);
  PlanPrefills(plan);
  if (plan.empty()) {
    next_ = std::move(plan);
    return {};
  }
  plan.number = ++steps_;
  in_flight_ = plan;
  return plan;
}

// Goes through the admissions that are due, in their order, and preempts for those that find no
// slot.
void Scheduler::ShareSlots() {
  struct Share {
    Client* client;
    int64_t running, waiting;
  };
  std::vector<Share> shares;
  for (auto& [id, client] : clients_) {
    shares.push_back({&client, std::ssize(client.running), std::ssize(client.waiting)});
  }
  int64_t free = options_.max_sequences - std::ssize(running_);
  while (!shares.empty()) {
    const auto rank = [](const Share& share) {
      return std::pair(share.waiting == 0, share.running);
    };
    Share& poorest = *std::ranges::min_element(shares, {}, rank);
    Share& richest = *std::ranges::max_element(shares, {}, &Share::running);
    if (poorest.waiting == 0) return;
    if (free > 0) {
      --free;
    } else {
      if (richest.running < poorest.running + 2) return;
      Preempt(*richest.client->running.rbegin());
      --richest.running;
    }
    ++poorest.running;
    --poorest.waiting;
  }
}

int64_t Scheduler::BlocksOf(const Client& client) {
  int64_t blocks = 0;
  for (const SequenceId id : client.running) {
    blocks += std::ssize(entries_.at(id).life.memory().sequence.pages().context_blocks);
  }
  return blocks;
}

// For the first that waits, if memory is what it lacks.
void Scheduler::ShareBlocks() {
  const auto next = NextWaiting();
  if (!next || !AnotherMayRun() || clients_.size() < 2) return;
  Entry& entry = entries_.at(*next);
  const int64_t wanted = BlocksFor(std::ssize(entry.tokens));
  while (!MayBeAdmitted(entry)) {
    Client* richest = nullptr;
    int64_t most = BlocksOf(entry.client()) + wanted;  // that it would have
    for (auto& [id, client] : clients_) {
      const int64_t blocks = client.running.size() > 1 ? BlocksOf(client) : 0;
      if (blocks <= most) continue;
      most = blocks;
      richest = &client;
    }
    if (richest == nullptr || richest == &entry.client()) return;
    Preempt(*richest->running.rbegin());
  }
}

// A block for the next token of all that decode.
void Scheduler::MakeRoomToDecode() {
  const std::vector<SequenceId> ids(running_.begin(), running_.end());
  for (const SequenceId id : ids) {
    Entry& entry = entries_.at(id);
    while (entry.life.decoding()) {
      Sequence& sequence = entry.life.memory().sequence;
      const bool full =
          sequence.position() == std::ssize(sequence.pages().context_blocks) * kContextBlockTokens;
      if (!full || cache_.MakeFree(1)) {
        const Status reserved = pages_.Reserve(sequence, 1);
        HB_CHECK(reserved, "{}", reserved.error().message);
        break;
      }
      Preempt(VictimForABlock());
    }
  }
}

// The youngest of the client that has the most, but never the oldest of all.
SequenceId Scheduler::VictimForABlock() {
  std::pair<int64_t, SequenceId> victim = {0, *running_.begin()};
  for (const auto& [id, client] : clients_) {
    if (client.running.empty() || *client.running.rbegin() == *running_.begin()) continue;
    victim = std::max(victim, std::pair(BlocksOf(client), *client.running.rbegin()));
  }
  return victim.second;
}

void Scheduler::Preempt(SequenceId id) {
  Entry& entry = entries_.at(id);
  entry.life.Preempt();
  running_.erase(id);
  entry.client().running.erase(id);
  Wait(id);
  ++counts_.preemptions;
  ++entry.request->counts.preemptions;
}

void Scheduler::PlanDecodes(StepPlan& plan) {
  for (const SequenceId id : running_) {
    Entry& entry = entries_.at(id);
    if (entry.life.decoding()) PlanChunk(id, entry, /*most=*/1, plan);
  }
}

int64_t Scheduler::PromptTokensLeft(const Client& client) {
  int64_t left = 0;
  for (const SequenceId id : client.running) {
    Entry& entry = entries_.at(id);
    if (entry.life.prefilling()) left += entry.left();
  }
  return left;
}

void Scheduler::PlanPrefills(StepPlan& plan) {
  std::vector<Client*> clients;
  std::vector<int64_t> wants;
  for (auto& [id, client] : clients_) {
    const int64_t left = PromptTokensLeft(client);
    if (left == 0) continue;
    clients.push_back(&client);
    wants.push_back(left);
  }
  const int64_t share = std::max(
      kSmallestShare, EvenShare(std::move(wants), options_.max_batch_tokens - plan.tokens()));
  // Where not all find room in this step, those with the least come first.
  std::ranges::stable_sort(clients, {}, [](const Client* client) { return client->served; });
  for (Client* client : clients) {
    int64_t left = share;
    for (const SequenceId id : client->running) {
      Entry& entry = entries_.at(id);
      if (!entry.life.prefilling()) continue;
      const int64_t before = plan.tokens();
      PlanChunk(id, entry, left, plan);
      left -= plan.tokens() - before;
    }
  }
}

bool Scheduler::AnotherMayRun() const { return std::ssize(running_) < options_.max_sequences; }

// Those with the fewest slots come first, then those with the fewest tokens, then the oldest.
std::optional<SequenceId> Scheduler::NextWaiting() const {
  std::optional<std::tuple<size_t, int64_t, SequenceId>> next;
  for (const auto& [id, client] : clients_) {
    if (client.waiting.empty()) continue;
    const std::tuple rank(client.running.size(), client.served, *client.waiting.begin());
    if (!next || rank < *next) next = rank;
  }
  return next ? std::optional(std::get<SequenceId>(*next)) : std::nullopt;
}

// As long as the step has room for their prompts; one of each client's in any case.
void Scheduler::AdmitWaiting(StepPlan& plan) {
  int64_t prompts = 0;
  for (const auto& [id, client] : clients_) prompts += PromptTokensLeft(client);
  while (AnotherMayRun()) {
    const auto id = NextWaiting();
    if (!id) return;
    Entry& entry = entries_.at(*id);
    const bool room = plan.tokens() + prompts < options_.max_batch_tokens;
    if (!room && PromptTokensLeft(entry.client()) > 0) return;
    if (!Admit(*id, plan)) return;  // nobody overtakes
    prompts += entry.left();
  }
}

// For the whole prompt and the token that follows it.
int64_t Scheduler::BlocksFor(int64_t tokens) const {
  const int64_t whole = std::min(tokens + 1, limits_.max_model_len);
  return (whole + kContextBlockTokens - 1) / kContextBlockTokens;
}

PrefixCache::Match Scheduler::Find(const Entry& entry) {
  const ScheduledRequest& request = entry.request->request;
  // The last token is always computed: its logits are wanted.
  const int64_t limit = request.prompt_logits ? 0 : std::ssize(entry.tokens) - 1;
  return cache_.Find(request.cache_salt, entry.tokens, limit, limits_.replay_tokens);
}

bool Scheduler::MayBeAdmitted(const Entry& entry) {
  const int64_t blocks = BlocksFor(std::ssize(entry.tokens));
  if (cache_.available() >= blocks) return true;
  if (cache_.available() + std::ssize(entry.tokens) / kContextBlockTokens < blocks) return false;
  const PrefixCache::Match match = Find(entry);
  return cache_.available() + match.chain.tokens() / kContextBlockTokens >= blocks;
}

bool Scheduler::Admit(SequenceId id, StepPlan& plan) {
  Entry& entry = entries_.at(id);
  const int64_t tokens = std::ssize(entry.tokens);
  const int64_t blocks = BlocksFor(tokens);
  if (cache_.available() + tokens / kContextBlockTokens < blocks) return false;  // even if all hits
  PrefixCache::Match match = Find(entry);
  if (!cache_.MakeFree(blocks - match.chain.tokens() / kContextBlockTokens)) return false;
  auto sequence = Start(match);
  HB_CHECK(sequence, "{} run: {}", running_.size(), sequence.error().message);
  const Status reserved = pages_.ReserveContext(*sequence, blocks * kContextBlockTokens);
  HB_CHECK(reserved, "{}", reserved.error().message);
  const int64_t hit = sequence->position();
  if (match.snapshot != nullptr) {
    plan.restores.push_back({sequence->pages().slot, hit, match.snapshot->tail()});
  }
  entry.life.Admit({std::move(match.chain), *std::move(sequence)},
                   match.found_tokens > hit ? match.found_tokens : 0);
  Run(id);
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

// As many of the sequence's tokens as the step has room for, at most `most`.
void Scheduler::PlanChunk(SequenceId id, Entry& entry, int64_t most, StepPlan& plan) {
  Sequence& sequence = entry.life.memory().sequence;
  const int64_t position = sequence.position();
  int64_t count = std::min({entry.left(), options_.max_batch_tokens - plan.tokens(), most});
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
  entry.client().served += count;
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
    Run(id);
  } else {
    Wait(id);
  }
}

void Scheduler::Finish(SequenceId id) {
  RequestEntry& request = *entries_.at(id).request;
  Client& client = *request.client;
  entries_.erase(id);
  running_.erase(id);
  client.running.erase(id);
  counts_.waiting -= static_cast<int64_t>(client.waiting.erase(id));
  if (--request.unfinished > 0) return;
  const ClientId client_id = request.request.client;
  requests_.erase(id.request);
  if (--client.requests == 0) clients_.erase(client_id);
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
