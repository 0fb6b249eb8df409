// Finds added tokens in text: the leftmost one, the longest at its place.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halfbyte {

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
  bool operator==(const ByteRange&) const = default;
};

struct FoundToken {
  ByteRange range;
  int32_t id;
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // Spellings, not empty and each once, with their ids.
  explicit AddedTokenFinder(std::vector<std::pair<std::string, int32_t>> tokens);

  // Appends the tokens that lie wholly inside text[range], in order, disjoint.
  void FindAll(std::string_view text, ByteRange range, std::vector<FoundToken>* found) const;

  bool empty() const { return tokens_.empty(); }

 private:
  struct Match {
    size_t length = 0;  // 0: none
    int32_t id = -1;
  };
  Match LongestAt(std::string_view text) const;

  std::vector<std::pair<std::string, int32_t>> tokens_;                // sorted by spelling
  std::array<std::pair<uint32_t, uint32_t>, 256> by_first_byte_ = {};  // ranges of tokens_
};

}  // namespace halfbyte
