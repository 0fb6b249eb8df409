// Token ids from a JSON file: a list of ids (one sequence) or a list of such lists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"

namespace halfbyte {

// Errors: not such a list, a number that is no int32, an empty list. Whether an id is in the
// vocabulary is the model's business.
Result<std::vector<std::vector<int32_t>>> ReadTokenSequences(const std::filesystem::path& path);

// As above, exactly one sequence.
Result<std::vector<int32_t>> ReadTokenIds(const std::filesystem::path& path);

}  // namespace halfbyte
