#include "text/added_token_finder.h"

#include <algorithm>

namespace halfbyte {

AddedTokenFinder::AddedTokenFinder(std::vector<std::pair<std::string, int32_t>> tokens)
    : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end());
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    auto& [begin, end] = by_first_byte_[static_cast<uint8_t>(tokens_[i].first[0])];
    if (end == 0) begin = i;
    end = i + 1;
  }
}

// Narrows the sorted range of tokens that begin with ever more of the text.
AddedTokenFinder::Match AddedTokenFinder::LongestAt(std::string_view text) const {
  auto [low, high] = by_first_byte_[static_cast<uint8_t>(text[0])];
  Match best;
  for (size_t depth = 1; low < high; ++depth) {
    // A token of exactly `depth` bytes sorts before the longer ones.
    if (tokens_[low].first.size() == depth) {
      best = {depth, tokens_[low].second};
      ++low;
    }
    if (depth == text.size()) break;
    const auto byte_of = [depth](const auto& token) {
      return static_cast<uint8_t>(token.first[depth]);
    };
    const auto byte = static_cast<uint8_t>(text[depth]);
    const auto begin = tokens_.begin();
    const auto lower = std::partition_point(begin + low, begin + high,
                                            [&](const auto& t) { return byte_of(t) < byte; });
    const auto upper = std::partition_point(lower, begin + high,
                                            [&](const auto& t) { return byte_of(t) <= byte; });
    low = static_cast<uint32_t>(lower - begin);
    high = static_cast<uint32_t>(upper - begin);
  }
  return best;
}

void AddedTokenFinder::FindAll(std::string_view text, ByteRange range,
                               std::vector<FoundToken>* found) const {
  if (empty()) return;
  size_t at = range.begin;
  while (at < range.end) {
    const auto [first, last] = by_first_byte_[static_cast<uint8_t>(text[at])];
    const Match match = first == last ? Match{} : LongestAt(text.substr(at, range.end - at));
    if (match.length > 0) {
      found->push_back({{at, at + match.length}, match.id});
      at += match.length;
    } else {
      ++at;
    }
  }
}

}  // namespace halfbyte
