#include "text/chat_splitter.h"

#include <algorithm>
#include <utility>

namespace halfbyte {
namespace {

constexpr int64_t kMostNewlines = 2;
constexpr size_t kMostTagBytes = 512;
constexpr std::string_view kTagNames[] = {"tool_calls", "invoke", "parameter"};

enum class Candidate { kNo, kStart, kMark };

// What `text`, which begins with "<", is. The token that makes a mark may follow "<" and "</".
Candidate Classify(std::string_view text, bool spelled_marks) {
  if (text == "<" || text == "</") return Candidate::kStart;
  if (!spelled_marks) return Candidate::kNo;
  text.remove_prefix(text.starts_with("</") ? 2 : 1);
  Candidate best = Candidate::kNo;
  for (const std::string_view dsml : kDsml) {
    if (text == dsml) return Candidate::kMark;
    if (dsml.starts_with(text)) best = Candidate::kStart;
  }
  return best;
}

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

const ToolTypes& ChatSplitter::NoTools() {
  static const ToolTypes none;
  return none;
}

ChatSplitter::ChatSplitter(bool starts_in_reasoning, Tools tools, const ToolTypes& types)
    : state_(starts_in_reasoning ? State::kReasoning : State::kContent),
      spelled_marks_(tools != Tools::kNone) {
  if (tools == Tools::kCalled) calls_.emplace(types);
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
    EndTag(/*malformed=*/true, pieces);
  }
  if (!IsMarkup(spelling)) {
    Take(spelling, pieces);
  } else if (!IsDsml(spelling)) {
    TakeThink(spelling == kThinkEnd, pieces);
  } else if (candidate_ == "<" || candidate_ == "</") {
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
  if (calls_) calls_->End(pieces.tool_calls);
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
  if (state_ == State::kBlock && calls_) calls_->Bytes(text, pieces.tool_calls);
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
  if (!candidate_.empty()) {
    candidate_ += byte;
    const Candidate candidate = Classify(candidate_, spelled_marks_);
    if (candidate == Candidate::kStart) return;
    if (candidate == Candidate::kMark) return BeginTag(pieces);
    candidate_.pop_back();
    ReleaseHeld(pieces);
  }
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

// After a mark, of which the candidate is what has come.
void ChatSplitter::BeginTag(Pieces& pieces) {
  closing_ = std::exchange(candidate_, {}).starts_with("</");
  if (closing_) ReleaseHeld(pieces);
  newlines_ = 0;
  tag_.clear();
  state_ = State::kTag;
}

void ChatSplitter::TakeTag(char byte, Pieces& pieces) {
  if (byte == '>') return EndTag(/*malformed=*/!MayBeTag(tag_ + " "), pieces);
  tag_ += byte;
  if (MayBeTag(tag_) && tag_.size() < kMostTagBytes) return;
  EndTag(/*malformed=*/true, pieces);
  if (byte == '<') TakeText(byte, pieces);  // may begin the next mark
}

void ChatSplitter::EndTag(bool malformed, Pieces& pieces) {
  ++(malformed ? suppressed_.malformed : suppressed_.tags);
  if (!malformed) {
    const size_t end = std::min(tag_.find_first_of(" \n"), tag_.size());
    const std::string_view name = std::string_view(tag_).substr(0, end);
    if (calls_) {
      calls_->Tag(closing_, name, std::string_view(tag_).substr(end), pieces.tool_calls);
    }
    if (name == "parameter") parameter_ = !closing_;
    if (name == "invoke") invoke_ = !closing_;
    if (name == "tool_calls") block_ = !closing_;
    if (name != "parameter" || closing_) parameter_ = false;
    if (name == "tool_calls" && closing_) invoke_ = false;
  } else if (calls_) {
    calls_->Malformed();
  }
  state_ = block_ || invoke_ || parameter_ ? State::kBlock : State::kContent;
}

}  // namespace halfbyte
