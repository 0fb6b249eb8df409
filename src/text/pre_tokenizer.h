// Cuts text into pretokens, the pieces that byte-pair encoding works on: a sequence of "isolated"
// splits, each applied to every piece that the one before left. A match becomes a piece of its own,
// and so does the text between two matches. Each piece is its own world: look-ahead does not see
// beyond it.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace halfbyte {

struct Split {
  Regex regex;
  bool covers_all = false;  // text between matches is an error
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Split> splits) : splits_(std::move(splits)) {}

  // Calls sink(std::string_view) for each piece, in order; the pieces are non-empty and make up
  // `text`, which must be valid UTF-8. Error: a regex gives up (Regex::Find), or matches less than
  // it must; the first one of the sink, which is called no more.
  template <class Sink>
  Status ForEachPiece(std::string_view text, RegexScratch* scratch, Sink&& sink) const {
    return Cut(0, text, scratch, sink);
  }

 private:
  template <class Sink>
  Status Cut(size_t stage, std::string_view text, RegexScratch* scratch, Sink& sink) const {
    if (text.empty()) return {};
    if (stage == splits_.size()) return sink(text);
    size_t done = 0;  // text before this has been handed on
    size_t from = 0;  // the search goes on here
    const auto hand_on_before = [&](size_t end) -> Status {
      if (end > done && splits_[stage].covers_all) {
        return MakeError("does not match \"{}\"",
                         text.substr(done, std::min<size_t>(end - done, 60)));
      }
      return Cut(stage + 1, text.substr(done, end - done), scratch, sink);
    };
    while (from <= text.size()) {
      auto found = splits_[stage].regex.Find(text, from, scratch);
      if (!found) return tl::unexpected(std::move(found.error()));
      if (!*found) break;
      const auto [begin, end] = **found;
      HB_RETURN_IF_ERROR(hand_on_before(begin));
      HB_RETURN_IF_ERROR(Cut(stage + 1, text.substr(begin, end - begin), scratch, sink));
      done = end;
      from = end;
      if (begin == end) {  // an empty match cuts here; the next one is a character further
        from += end < text.size() ? NextUtf8(text.substr(end)).length : 1;
      }
    }
    return hand_on_before(text.size());
  }

  std::vector<Split> splits_;
};

}  // namespace halfbyte
