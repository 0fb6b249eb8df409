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

// As an OutputFile (base/output_file.h): on failure (disk full, read-only) what `path` held before
// is untouched.
Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

// Whether such a write could begin, for asking before long work.
Status CheckWritable(const std::filesystem::path& path);

}  // namespace halfbyte
