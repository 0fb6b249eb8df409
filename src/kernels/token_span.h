// Which tokens of a ragged batch belong to one sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace halfbyte {

// Batch rows [first, first + count) are the sequence's positions [position, position + count).
struct TokenSpan {
  int64_t first = 0;
  int64_t count = 0;
  int64_t position = 0;
};

// Tokens of all sequences together.
template <class Sequence>
int64_t CountTokens(std::span<const Sequence> sequences) {
  int64_t count = 0;
  for (const TokenSpan& span : sequences) count += span.count;
  return count;
}

// Calls body(sequence, i) for tokens [begin, end), numbered through the sequences: i counts within
// one. So that a loop over a batch's tokens may be shared out whoever they belong to.
template <class Sequence, class Body>
void ForTokens(std::span<const Sequence> sequences, int64_t begin, int64_t end, const Body& body) {
  for (const Sequence& sequence : sequences) {
    for (int64_t i = begin > 0 ? begin : 0; i < sequence.count && i < end; ++i) body(sequence, i);
    begin -= sequence.count;
    end -= sequence.count;
    if (end <= 0) return;
  }
}

// The parts of the sequences that lie in batch rows [first, first + count).
template <class Sequence>
std::vector<Sequence> Within(std::span<const Sequence> sequences, int64_t first, int64_t count) {
  std::vector<Sequence> parts;
  for (const Sequence& sequence : sequences) {
    const int64_t begin = std::max(sequence.first, first);
    const int64_t end = std::min(sequence.first + sequence.count, first + count);
    if (begin >= end) continue;
    Sequence& part = parts.emplace_back(sequence);
    part.first = begin;
    part.count = end - begin;
    part.position += begin - sequence.first;
  }
  return parts;
}

}  // namespace halfbyte
