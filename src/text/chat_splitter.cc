#include "text/chat_splitter.h"

#include <algorithm>
#include <utility>

namespace halfbyte {
namespace {

constexpr int64_t kMostNewlines = 2;
constexpr size_t kMostTagBytes = 512;
constexpr std::string_view kTagNames[] = {"tool_calls", "invoke", "parameter"};

bool IsDsml(std::string_view spelling) {
  return std::ranges::find(kDsml, spelling) != std::end(kDsml);
}

// Whether `tag` may still become a tag: a name, then a space or the end.
bool MayBeTag(std::string_view tag) {
  return std::ranges::any_of(kTagNames, [&](std::string_view name) {
    if (tag.size() <= name.size()) return name.starts_with(tag);
    return tag.starts_with(name) && (tag[name.size()] == ' ' || tag[name.size()] == '\n');
  });
}

}  // namespace

bool IsMarkup(std::string_view spelling) {
  return spelling == kThink || spelling == kThinkEnd || IsDsml(spelling);
}

ChatSplitter::Pieces ChatSplitter::Push(std::string_view bytes) {
  Pieces pieces;
  Take(bytes, pieces);
  return pieces;
}

ChatSplitter::Pieces ChatSplitter::PushControl(std::string_view spelling) {
  Pieces pieces;
  // No tag has a token of markup in it; it may begin one.
  const bool in_tag = state_ == State::kTag && IsMarkup(spelling);
  if (in_tag) {
    if (IsDsml(spelling)) candidate_ = tag_.ends_with("</") ? "</" : tag_.ends_with('<') ? "<" : "";
    EndTag(/*malformed=*/true);
  }
  if (!IsMarkup(spelling)) {
    Take(spelling, pieces);
  } else if (!IsDsml(spelling)) {
    TakeThink(spelling == kThinkEnd, pieces);
  } else if (!candidate_.empty()) {
    BeginTag(pieces);
  } else if (!in_tag) {
    Take(spelling, pieces);
  }
  return pieces;
}

ChatSplitter::Pieces ChatSplitter::Flush() {
  Pieces pieces;
  suppressed_.unfinished += state_ == State::kTag ? 1 : 0;
  ReleaseHeld(pieces);
  return pieces;
}

ChatSplitter::Suppressed& ChatSplitter::Suppressed::operator+=(const Suppressed& other) {
  tags += other.tags;
  malformed += other.malformed;
  unfinished += other.unfinished;
  thinks += other.thinks;
  return *this;
}

void ChatSplitter::Emit(std::string_view text, Pieces& pieces) {
  if (state_ == State::kReasoning) pieces.reasoning += text;
  if (state_ == State::kContent) pieces.content += text;
}

void ChatSplitter::ReleaseHeld(Pieces& pieces) {
  Emit(std::string(static_cast<size_t>(newlines_), '\n'), pieces);
  newlines_ = 0;
  Emit(std::exchange(candidate_, {}), pieces);
}

void ChatSplitter::Take(std::string_view bytes, Pieces& pieces) {
  for (const char byte : bytes) {
    if (state_ == State::kTag) {
      TakeTag(byte, pieces);
    } else {
      TakeText(byte, pieces);
    }
  }
}

void ChatSplitter::TakeText(char byte, Pieces& pieces) {
  if (byte == '/' && candidate_ == "<") {
    candidate_ += byte;
    return;
  }
  if (!candidate_.empty()) ReleaseHeld(pieces);
  if (byte == '<') {
    candidate_ = byte;
  } else if (byte == '\n' && state_ == State::kContent && newlines_ < kMostNewlines) {
    ++newlines_;
  } else if (byte == '\n' && state_ == State::kContent) {
    Emit("\n", pieces);
  } else {
    ReleaseHeld(pieces);
    Emit({&byte, 1}, pieces);
  }
}

// Strays vanish; inside reasoning an opening one is a word like others.
void ChatSplitter::TakeThink(bool closing, Pieces& pieces) {
  ReleaseHeld(pieces);
  if (state_ != State::kReasoning) {
    ++suppressed_.thinks;
  } else if (closing) {
    state_ = State::kContent;
  } else {
    Emit(kThink, pieces);
  }
}

// After a mark, whose first part is held.
void ChatSplitter::BeginTag(Pieces& pieces) {
  closing_ = std::exchange(candidate_, {}) == "</";
  if (closing_) ReleaseHeld(pieces);
  newlines_ = 0;
  tag_.clear();
  state_ = State::kTag;
}

void ChatSplitter::TakeTag(char byte, Pieces& pieces) {
  if (byte == '>') return EndTag(/*malformed=*/!MayBeTag(tag_ + " "));
  tag_ += byte;
  if (MayBeTag(tag_) && tag_.size() < kMostTagBytes) return;
  EndTag(/*malformed=*/true);
  if (byte == '<') TakeText(byte, pieces);  // may begin the next mark
}

void ChatSplitter::EndTag(bool malformed) {
  ++(malformed ? suppressed_.malformed : suppressed_.tags);
  if (!malformed) {
    const std::string_view name = std::string_view(tag_).substr(0, tag_.find_first_of(" \n"));
    if (name == "parameter") parameter_ = !closing_;
    if (name == "invoke") invoke_ = !closing_;
    if (name == "tool_calls") block_ = !closing_;
    if (name != "parameter" || closing_) parameter_ = false;
    if (name == "tool_calls" && closing_) invoke_ = false;
  }
  state_ = block_ || invoke_ || parameter_ ? State::kBlock : State::kContent;
}

}  // namespace halfbyte
