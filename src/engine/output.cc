#include "engine/output.h"

#include <iterator>
#include <utility>

#include "base/check.h"

namespace halfbyte {
namespace {

template <class T>
void Join(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

int64_t BytesOf(const LogprobEntry& entry) {
  return static_cast<int64_t>(sizeof(entry) + entry.top.size() * sizeof(TokenLogprob));
}

}  // namespace

std::string_view Name(FinishReason reason) {
  constexpr std::string_view kNames[] = {"stop", "length", "abort", "error"};
  return kNames[static_cast<size_t>(reason)];
}

std::string_view Name(CancelCause cause) {
  constexpr std::string_view kNames[] = {"client",        "disconnected",    "slow_client",
                                         "queue_timeout", "request_timeout", "shutdown"};
  return kNames[static_cast<size_t>(cause)];
}

int64_t OutputEvent::bytes() const {
  auto total =
      static_cast<int64_t>(content.size() + reasoning.size() + token_ids.size() * sizeof(int32_t));
  for (const LogprobEntry& entry : content_logprobs) total += BytesOf(entry);
  for (const LogprobEntry& entry : reasoning_logprobs) total += BytesOf(entry);
  for (const auto& entry : prompt_logprobs) total += entry ? BytesOf(*entry) : 8;
  return total;
}

void Append(OutputEvent& event, OutputEvent next) {
  HB_CHECK(event.choice == next.choice && !event.finish, "choices {} and {}", event.choice,
           next.choice);
  event.content += next.content;
  event.reasoning += next.reasoning;
  Join(event.token_ids, next.token_ids);
  Join(event.content_logprobs, next.content_logprobs);
  Join(event.reasoning_logprobs, next.reasoning_logprobs);
  Join(event.prompt_logprobs, next.prompt_logprobs);
  event.usage = next.usage;
  event.finish = std::move(next.finish);
}

}  // namespace halfbyte
