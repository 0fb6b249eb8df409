// Small whole-file helpers. Writers never leave a half-written file under the final name.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

// Errors: unreadable, or larger than max_bytes (a guard against feeding a wrong file).
Result<std::string> ReadTextFile(const std::filesystem::path& path,
                                 size_t max_bytes = size_t{256} << 20);

// Writes to "<path>.tmp", syncs, renames onto `path`. On failure (disk full, read-only) the
// temporary file is removed and what `path` held before is untouched.
Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

// Whether such a write could begin, for asking before long work: creates "<path>.tmp" and removes
// it. Error also if `path` is a directory.
Status CheckWritable(const std::filesystem::path& path);

}  // namespace halfbyte
