#include "engine/choice_output.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace halfbyte {
namespace {

bool Contains(std::span<const int32_t> ids, int32_t id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

int64_t CountCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

ChoiceOutput::ChoiceOutput(const Request& request, const Tokenizer* tokenizer,
                           std::span<const int32_t> eos_ids, int64_t first_offset)
    : request_(request),
      tokenizer_(tokenizer),
      eos_ids_(eos_ids),
      splitter_(request.output.starts_in_reasoning),
      content_{.characters = first_offset},
      matcher_(request.stop.strings) {}

bool ChoiceOutput::EndsTheText(int32_t token) const {
  return Contains(request_.stop.token_ids, token) ||
         (!request_.stop.ignore_eos && Contains(eos_ids_, token));
}

void ChoiceOutput::Add(int32_t token, std::optional<LogprobEntry> logprobs, OutputEvent& event) {
  HB_CHECK(!finished_, "token {} after the end", token);
  ++tokens_;
  reasoning_tokens_ += in_reasoning() ? 1 : 0;
  event.token_ids.push_back(token);
  if (EndsTheText(token)) {
    Finish finish{.reason = FinishReason::kStop};
    if (Contains(request_.stop.token_ids, token)) finish.stop_token = token;
    return End(std::move(finish), event);
  }
  const OutputFormat& format = request_.output;
  const bool special = tokenizer_ != nullptr && tokenizer_->IsSpecial(token);
  std::string_view bytes;
  const bool hidden =
      special && format.kind == OutputFormat::Kind::kText && format.skip_special_tokens;
  if (tokenizer_ != nullptr && format.kind != OutputFormat::Kind::kIds && !hidden) {
    // A model may have more rows than the vocabulary; such a token gives no text.
    bytes = tokenizer_->TokenBytes(token).value_or(std::string_view());
  }
  const bool control = tokenizer_ != nullptr && tokenizer_->IsAdded(token);
  if (logprobs) Await(*std::move(logprobs), special || (control && IsMarkup(bytes)));
  Feed(bytes, control, event);
  if (matcher_.matched()) {
    End({.reason = FinishReason::kStop}, event);
  } else if (tokens_ == request_.max_tokens) {
    End({.reason = FinishReason::kLength}, event);
  } else {
    ReleaseEntries(/*all=*/false, event);
  }
}

void ChoiceOutput::End(Finish finish, OutputEvent& event) {
  HB_CHECK(!finished_, "the choice has ended");
  finished_ = true;
  FlushText(event);
  // What was held back may have completed a stop string.
  if (matcher_.matched() && finish.reason <= FinishReason::kLength) {
    const std::string& string = request_.stop.strings[*matcher_.matched()];
    finish = {.reason = FinishReason::kStop, .stop_string = string};
    if (request_.stop.include_string) event.content += string;
  }
  ReleaseEntries(/*all=*/true, event);
  event.finish = std::move(finish);
}

void ChoiceOutput::Feed(std::string_view bytes, bool control, OutputEvent& event) {
  if (request_.output.kind == OutputFormat::Kind::kChat) {
    Show(control ? splitter_.PushControl(bytes) : splitter_.Push(bytes), /*last=*/false, event);
  } else {
    AddContent(Decode(content_, bytes, /*last=*/false), event);
  }
}

void ChoiceOutput::FlushText(OutputEvent& event) {
  Show(splitter_.Flush(), /*last=*/true, event);
  if (!matcher_.matched()) {
    const std::string rest = matcher_.Flush();
    shown_ += std::ssize(rest);
    event.content += rest;
  }
}

void ChoiceOutput::Show(const ChatSplitter::Pieces& pieces, bool last, OutputEvent& event) {
  // What reasoning leaves undecoded when it ends belongs to it alone.
  const bool reasoning_over = last || !in_reasoning();
  event.reasoning += Decode(reasoning_, pieces.reasoning, reasoning_over);
  AddContent(Decode(content_, pieces.content, last), event);
}

std::string ChoiceOutput::Decode(Channel& channel, std::string_view bytes, bool last) {
  std::string text = channel.decoder.Push(bytes);
  if (last) text += channel.decoder.Flush();
  channel.bytes += std::ssize(text);
  channel.characters += CountCharacters(text);
  return text;
}

void ChoiceOutput::AddContent(std::string_view text, OutputEvent& event) {
  const std::string shown = matcher_.Push(text, /*counts=*/tokens_ >= request_.min_tokens);
  shown_ += std::ssize(shown);
  event.content += shown;
}

void ChoiceOutput::Await(LogprobEntry entry, bool markup) {
  const bool chat = request_.output.kind == OutputFormat::Kind::kChat;
  // What stands inside markup is markup, too.
  if (chat && (markup || !(splitter_.in_reasoning() || splitter_.in_content()))) return;
  const bool reasoning = in_reasoning();
  const Channel& channel = reasoning ? reasoning_ : content_;
  entry.text_offset = channel.characters + (chat ? splitter_.held() : 0);
  entries_.push_back({std::move(entry), reasoning, channel.bytes, std::nullopt});
}

void ChoiceOutput::ReleaseEntries(bool all, OutputEvent& event) {
  const bool chat = request_.output.kind == OutputFormat::Kind::kChat;
  for (WaitingEntry& waiting : entries_) {
    const Channel& channel = waiting.reasoning ? reasoning_ : content_;
    const bool complete = (!chat || splitter_.held() == 0) && channel.decoder.held() == 0;
    if (!waiting.end && (all || complete)) waiting.end = channel.bytes;
  }
  while (!entries_.empty()) {
    WaitingEntry& first = entries_.front();
    const bool cut = matcher_.matched() && !first.reasoning && first.begin >= shown_;
    const bool shown = first.end && (first.reasoning || *first.end <= shown_);
    if (!all && !shown) return;
    if (!cut) {
      (first.reasoning ? event.reasoning_logprobs : event.content_logprobs)
          .push_back(std::move(first.entry));
    }
    entries_.pop_front();
  }
}

}  // namespace halfbyte
