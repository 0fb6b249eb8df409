// Any bytes as a Python source: an error or texts in UTF-8, never a crash or hang; and a text that
// can be read does not swallow what follows it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/python_literals.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using halfbyte::IsValidUtf8;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto literals = halfbyte::ReadPythonLiterals(text, "a.py");
  if (!literals) return 0;
  for (const auto& [name, value] : literals->strings) {
    HB_CHECK(IsValidUtf8(name) && IsValidUtf8(value), "{}", name);
  }
  for (const auto& [name, table] : literals->tables) {
    for (const auto& [key, value] : table) {
      HB_CHECK(IsValidUtf8(key) && IsValidUtf8(value), "{}", name);
    }
  }
  // One line end may belong to a line that goes on.
  const auto more = halfbyte::ReadPythonLiterals(text + "\n\nADDED = ('x' 'y')\n", "a.py");
  HB_CHECK(more, "{}", more.error().message);
  HB_CHECK(more->strings.at("ADDED") == "xy", "{}", more->strings.at("ADDED"));
  return 0;
}
