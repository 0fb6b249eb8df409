// Who may ask (server.md §2.1).
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/http.h"

namespace halfbyte {

class ApiKeys {
 public:
  // `given` keys always count; those of `file` (one per line; blank lines and lines that begin with
  // # do not count) until Reload reads others. An empty path: no file.
  // Errors: a file that cannot be read or holds no key; an empty key.
  static Result<std::unique_ptr<ApiKeys>> Create(std::vector<std::string> given,
                                                 std::filesystem::path file);

  // Reads the file again. On an error the keys stay as they are.
  Status Reload();

  // Without any key everybody may ask.
  bool required() const { return !given_.empty() || !file_.empty(); }

  // Bytes of the shortest key; without any: the most there are.
  size_t shortest() const;

  // Whether the request brings a valid key: "Authorization: Bearer KEY", "x-api-key: KEY", or Basic
  // with the key as password. The time it takes tells nothing about keys but their length.
  bool Admit(const HttpFields& fields) const { return !required() || ValidKey(fields); }
  // The first valid one of the keys that it brings.
  std::optional<std::string> ValidKey(const HttpFields& fields) const;
  // Whether it brings any.
  static bool Brought(const HttpFields& fields) {
    return fields.Find("x-api-key") || fields.Find("authorization");
  }

 private:
  ApiKeys(std::vector<std::string> given, std::filesystem::path file)
      : given_(std::move(given)), file_(std::move(file)) {}
  bool Holds(std::string_view key) const;

  const std::vector<std::string> given_;
  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::vector<std::string> of_file_;
};

}  // namespace halfbyte
