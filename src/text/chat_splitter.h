// Tells a chat answer's reasoning from its content while it comes, and keeps the model's markup out
// of both (server.md §3.4, without tools: their blocks are discarded).
//
// In: the answer's bytes token by token, in pieces of any size where tokens are ordinary ones. Only
// control tokens write markup, so a model that quotes its own is heard: <think>, </think>, and
// marks, which are "<" or "</" followed by the token ｜DSML｜. No byte from a mark to the end of
// its tag, and none inside a block of tool calls, comes out. Law: every split of the same bytes
// gives the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfbyte {

// What opens and closes reasoning.
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
// What makes a mark of "<" or "</", with bars of either kind.
inline constexpr std::string_view kDsml[] = {"｜DSML｜", "|DSML|"};
// Whether a control token is one of these.
bool IsMarkup(std::string_view spelling);

class ChatSplitter {
 public:
  explicit ChatSplitter(bool starts_in_reasoning)
      : state_(starts_in_reasoning ? State::kReasoning : State::kContent) {}

  struct Pieces {
    std::string reasoning;
    std::string content;
  };
  Pieces Push(std::string_view bytes);
  // A control token as it is spelled. Those that are no markup are text.
  Pieces PushControl(std::string_view spelling);
  // The end: what is held back is text after all, unfinished markup is dropped.
  Pieces Flush();

  // Pieces of markup that were kept out.
  struct Suppressed {
    int64_t tags = 0;        // complete
    int64_t malformed = 0;   // a mark that no tag follows
    int64_t unfinished = 0;  // cut by the end
    int64_t thinks = 0;      // stray <think>, </think>

    Suppressed& operator+=(const Suppressed& other);
    bool operator==(const Suppressed&) const = default;
  };
  const Suppressed& suppressed() const { return suppressed_; }

  bool in_reasoning() const { return state_ == State::kReasoning; }
  bool in_content() const { return state_ == State::kContent; }
  // Bytes held back because they may begin markup; at most 4.
  int64_t held() const { return newlines_ + static_cast<int64_t>(candidate_.size()); }

 private:
  enum class State {
    kReasoning,
    kContent,
    kTag,    // from a mark to its >
    kBlock,  // between the tags of a block: discarded
  };

  void Take(std::string_view bytes, Pieces& pieces);
  void TakeText(char byte, Pieces& pieces);
  void TakeTag(char byte, Pieces& pieces);
  void EndTag(bool malformed);
  void TakeThink(bool closing, Pieces& pieces);
  void BeginTag(Pieces& pieces);
  void Emit(std::string_view text, Pieces& pieces);
  void ReleaseHeld(Pieces& pieces);

  State state_;
  int64_t newlines_ = 0;   // kContent: held, 0 .. 2; dropped if an opening mark follows
  std::string candidate_;  // "<" or "</": the start of a mark
  std::string tag_;        // what followed the mark
  bool closing_ = false;   // the mark was a closing one
  bool block_ = false;     // open: tool_calls, invoke, parameter
  bool invoke_ = false;
  bool parameter_ = false;
  Suppressed suppressed_;
};

}  // namespace halfbyte
