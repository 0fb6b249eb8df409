#include "text/stop_matcher.h"

#include <deque>
#include <utility>

#include "base/check.h"

namespace halfbyte {
namespace {

uint64_t EdgeKey(int32_t node, uint8_t byte) { return static_cast<uint64_t>(node) << 8 | byte; }

}  // namespace

StopMatcher::StopMatcher(std::span<const std::string> strings) : nodes_(1) {
  for (size_t i = 0; i < strings.size(); ++i) {
    HB_CHECK(!strings[i].empty(), "stop string {} is empty", i);
    lengths_.push_back(strings[i].size());
    int32_t node = 0;
    for (const char c : strings[i]) {
      const auto [edge, added] = children_.emplace(EdgeKey(node, static_cast<uint8_t>(c)),
                                                   static_cast<int32_t>(nodes_.size()));
      if (added) nodes_.push_back({.depth = nodes_[static_cast<size_t>(node)].depth + 1});
      node = edge->second;
    }
    int32_t& match = nodes_[static_cast<size_t>(node)].longest_match;
    if (match < 0) match = static_cast<int32_t>(i);
  }
  // Nodes in the order of their depths, so that a fail link is complete before it is used.
  std::vector<std::vector<std::pair<uint8_t, int32_t>>> edges(nodes_.size());
  for (const auto& [key, child] : children_) {
    edges[key >> 8].emplace_back(static_cast<uint8_t>(key & 255), child);
  }
  std::deque<int32_t> queue = {0};
  while (!queue.empty()) {
    const int32_t node = queue.front();
    queue.pop_front();
    for (const auto& [byte, child] : edges[static_cast<size_t>(node)]) {
      Node& to = nodes_[static_cast<size_t>(child)];
      if (node != 0) to.fail = Next(nodes_[static_cast<size_t>(node)].fail, byte);
      // The node's own string is longer than any that its fail link ends.
      if (to.longest_match < 0) {
        to.longest_match = nodes_[static_cast<size_t>(to.fail)].longest_match;
      }
      queue.push_back(child);
    }
  }
}

int32_t StopMatcher::Child(int32_t node, uint8_t byte) const {
  const auto edge = children_.find(EdgeKey(node, byte));
  return edge == children_.end() ? -1 : edge->second;
}

int32_t StopMatcher::Next(int32_t node, uint8_t byte) const {
  for (;; node = nodes_[static_cast<size_t>(node)].fail) {
    const int32_t child = Child(node, byte);
    if (child >= 0) return child;
    if (node == 0) return 0;
  }
}

std::string StopMatcher::Push(std::string_view text, bool counts) {
  if (matched_ || lengths_.empty()) return std::string(matched_ ? std::string_view() : text);
  for (const char c : text) {
    held_ += c;
    state_ = Next(state_, static_cast<uint8_t>(c));
    const int32_t match = nodes_[static_cast<size_t>(state_)].longest_match;
    if (match >= 0 && counts) {
      matched_ = static_cast<size_t>(match);
      held_.resize(held_.size() - lengths_[*matched_]);
      return std::exchange(held_, {});
    }
  }
  const auto keep = static_cast<size_t>(nodes_[static_cast<size_t>(state_)].depth);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace halfbyte
