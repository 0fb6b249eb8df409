// Texts that a Python source gives to names, found by reading: nothing is run (server.md §3.1).
//
//   NAME = "..."                 also NAME: type = ..., raw and triple-quoted strings
//   NAME = ("..." "...")         neighbours are one string
//   NAME = {"key": "...", ...}   a table
//
// Only statements that stand at the beginning of a line count, not those in functions and blocks. A
// name has no text if its value is anything else (an f-string, a sum, a call), or if a later
// statement begins with it in another way (NAME += ..., NAME["key"] = ...).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

struct PythonLiterals {
  std::map<std::string, std::string> strings;  // UTF-8
  std::map<std::string, std::map<std::string, std::string>> tables;
};

// Errors, naming `source` and the line: not UTF-8, a string or a bracket that does not end, a
// bracket that closes nothing. Whatever else is no Python is passed over.
Result<PythonLiterals> ReadPythonLiterals(std::string_view text, const std::string& source);

}  // namespace halfbyte
