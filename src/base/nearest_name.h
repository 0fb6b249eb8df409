// "Did you mean ...": the known name that a mistyped one is closest to.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace halfbyte {

// The candidate with the fewest inserted, deleted, replaced or swapped neighbouring bytes, the
// first among equals; none if that takes more than a third of the name's length.
std::optional<std::string> NearestName(std::string_view name,
                                       std::span<const std::string> candidates);

}  // namespace halfbyte
