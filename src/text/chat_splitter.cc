#include "text/chat_splitter.h"

#include <algorithm>
#include <utility>

namespace halfbyte {
namespace {

constexpr std::string_view kWideBar = "\xEF\xBD\x9C";  // U+FF5C
constexpr int64_t kMostNewlines = 2;
constexpr size_t kMostTagBytes = 512;
constexpr std::string_view kTagNames[] = {"tool_calls", "invoke", "parameter"};

enum class Candidate { kNo, kStart, kOpenThink, kCloseThink, kOpeningMark, kClosingMark };

// What `text`, a start of markup but for its last byte, is.
Candidate Classify(std::string_view text) {
  if (text == kThink) return Candidate::kOpenThink;
  if (text == kThinkEnd) return Candidate::kCloseThink;
  if (kThink.starts_with(text) || kThinkEnd.starts_with(text)) return Candidate::kStart;
  const bool closing = text.starts_with("</");
  text.remove_prefix(closing ? 2 : 1);
  // bar DSML bar
  for (const std::string_view part :
       {std::string_view(), std::string_view("DSML"), std::string_view()}) {
    if (!part.empty()) {
      if (part.starts_with(text)) return Candidate::kStart;
      if (!text.starts_with(part)) return Candidate::kNo;
      text.remove_prefix(part.size());
      continue;
    }
    if (kWideBar.starts_with(text) && text.size() < kWideBar.size()) return Candidate::kStart;
    if (text.starts_with(kWideBar)) {
      text.remove_prefix(kWideBar.size());
    } else if (text.starts_with('|')) {
      text.remove_prefix(1);
    } else {
      return Candidate::kNo;
    }
  }
  return closing ? Candidate::kClosingMark : Candidate::kOpeningMark;
}

// Whether `tag` may still become a tag: a name, then a space or the end.
bool MayBeTag(std::string_view tag) {
  return std::ranges::any_of(kTagNames, [&](std::string_view name) {
    if (tag.size() <= name.size()) return name.starts_with(tag);
    return tag.starts_with(name) && (tag[name.size()] == ' ' || tag[name.size()] == '\n');
  });
}

}  // namespace

ChatSplitter::Pieces ChatSplitter::Push(std::string_view bytes) {
  Pieces pieces;
  for (const char byte : bytes) Take(byte, pieces);
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

void ChatSplitter::Take(char byte, Pieces& pieces) {
  if (state_ == State::kTag) {
    TakeTag(byte, pieces);
  } else {
    TakeText(byte, pieces);
  }
}

void ChatSplitter::TakeText(char byte, Pieces& pieces) {
  if (candidate_.empty() && byte != '<') {
    if (byte == '\n' && state_ == State::kContent) {
      if (newlines_ == kMostNewlines) {
        Emit("\n", pieces);
      } else {
        ++newlines_;
      }
      return;
    }
    ReleaseHeld(pieces);
    return Emit({&byte, 1}, pieces);
  }
  candidate_ += byte;
  const Candidate candidate = Classify(candidate_);
  switch (candidate) {
    case Candidate::kStart:
      return;
    case Candidate::kNo:
      candidate_.pop_back();
      ReleaseHeld(pieces);
      return Take(byte, pieces);
    case Candidate::kOpenThink:
      // Strays vanish; inside reasoning it is a word like others.
      if (state_ != State::kReasoning) {
        candidate_.clear();
        ++suppressed_.thinks;
      }
      return ReleaseHeld(pieces);
    case Candidate::kCloseThink:
      candidate_.clear();
      ReleaseHeld(pieces);
      if (state_ == State::kReasoning) {
        state_ = State::kContent;
      } else {
        ++suppressed_.thinks;
      }
      return;
    case Candidate::kClosingMark:
      candidate_.clear();
      ReleaseHeld(pieces);
      break;
    case Candidate::kOpeningMark:
      candidate_.clear();
      newlines_ = 0;
      break;
  }
  closing_ = candidate == Candidate::kClosingMark;
  state_ = State::kTag;
  tag_.clear();
}

void ChatSplitter::TakeTag(char byte, Pieces& pieces) {
  if (byte == '>') return EndTag(/*malformed=*/!MayBeTag(tag_ + " "));
  tag_ += byte;
  if (MayBeTag(tag_) && tag_.size() < kMostTagBytes) return;
  EndTag(/*malformed=*/true);
  if (byte == '<') Take(byte, pieces);  // may begin the next mark
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
