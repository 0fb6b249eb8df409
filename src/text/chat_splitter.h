// Tells a chat answer's reasoning, content and tool calls apart while it comes, and keeps the
// model's markup out of all of them (server.md §3.4).
//
// In: the answer's bytes token by token, in pieces of any size where tokens are ordinary ones. Only
// control tokens write markup, so a model that quotes its own is heard: <think>, </think>, and
// marks, which are "<" or "</" followed by the token ｜DSML｜; where the model may call tools, a
// spelled mark is one, too. No byte from a mark to the end of its tag comes out, and what stands in
// a block of calls does so as their arguments only. Law: every split of the same bytes gives the
// same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_call_parser.h"

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
  enum class Tools {
    kNone,     // the request has none
    kIgnored,  // the model knows some, but must not call them: what it writes is discarded
    kCalled,
  };
  // `types` must outlive the splitter.
  explicit ChatSplitter(bool starts_in_reasoning, Tools tools = Tools::kNone,
                        const ToolTypes& types = NoTools());

  struct Pieces {
    std::string reasoning;
    std::string content;
    std::vector<ToolCallDelta> tool_calls;
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
  bool in_block() const { return state_ == State::kBlock; }  // of tool calls
  int64_t completed_calls() const { return calls_ ? calls_->completed() : 0; }
  bool calls_closed() const { return calls_ && calls_->closed(); }
  bool call_is_cut() const { return calls_ && calls_->cut(); }
  // Bytes held back because they may begin markup; at most 13.
  int64_t held() const { return newlines_ + static_cast<int64_t>(candidate_.size()); }

 private:
  enum class State {
    kReasoning,
    kContent,
    kTag,    // from a mark to its >
    kBlock,  // between the tags of a block
  };

  void Take(std::string_view bytes, Pieces& pieces);
  void TakeText(char byte, Pieces& pieces);
  void TakeTag(char byte, Pieces& pieces);
  void EndTag(bool malformed, Pieces& pieces);
  void TakeThink(bool closing, Pieces& pieces);
  void BeginTag(Pieces& pieces);
  void Emit(std::string_view text, Pieces& pieces);
  void ReleaseHeld(Pieces& pieces);

  static const ToolTypes& NoTools();

  State state_;
  const bool spelled_marks_;
  std::optional<ToolCallParser> calls_;  // kCalled
  int64_t newlines_ = 0;   // kContent: held, 0 .. 2; dropped if an opening mark follows
  std::string candidate_;  // the start of a mark
  std::string tag_;        // what followed the mark
  bool closing_ = false;   // the mark was a closing one
  bool block_ = false;     // open: tool_calls, invoke, parameter
  bool invoke_ = false;
  bool parameter_ = false;
  Suppressed suppressed_;
};

}  // namespace halfbyte
