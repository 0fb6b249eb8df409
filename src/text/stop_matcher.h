// Finds the first of several stop strings in text that comes in pieces (server.md §1.9).
//
//   StopMatcher matcher(strings);
//   shown += matcher.Push(piece, true);
//   if (matcher.matched()) ...            // nothing of the match was shown
//   shown += matcher.Flush();             // at another end: what was held back
//
// The match that ends first wins, among those that end together the longest. The longest suffix
// that could begin a match is held back. Law: every split of the same text shows the same.
// An Aho-Corasick automaton: time does not depend on the number of strings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace halfbyte {

class StopMatcher {
 public:
  // What a request may ask for: so many strings, each of so many bytes.
  static constexpr size_t kMostStrings = 16;
  static constexpr size_t kMostBytes = 1024;

  // No string may be empty.
  explicit StopMatcher(std::span<const std::string> strings);

  // The text that is decided now; nothing after a match. Matches that end within this piece count
  // only if `counts`.
  std::string Push(std::string_view text, bool counts);
  // What is held back; nothing after a match.
  std::string Flush();

  // Which string ended the text.
  std::optional<size_t> matched() const { return matched_; }

 private:
  struct Node {
    int32_t fail = 0;            // the longest proper suffix that is a prefix of some string
    int32_t depth = 0;           // bytes of its prefix: what must be held
    int32_t longest_match = -1;  // the longest string that ends here
  };

  int32_t Child(int32_t node, uint8_t byte) const;  // -1: none
  int32_t Next(int32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, int32_t> children_;  // by node and byte
  std::vector<size_t> lengths_;                     // of the strings
  int32_t state_ = 0;
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace halfbyte
