#include "server/api_keys.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/file.h"

namespace halfbyte {
namespace {

constexpr size_t kMaxKeyFile = size_t{1} << 20;

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return (x | 0x20) == (y | 0x20); });
}

// What follows the scheme of an Authorization field; none for another scheme.
std::optional<std::string_view> Credentials(std::string_view field, std::string_view scheme) {
  if (field.size() <= scheme.size() || field[scheme.size()] != ' ' ||
      !EqualIgnoringCase(field.substr(0, scheme.size()), scheme)) {
    return std::nullopt;
  }
  field.remove_prefix(std::min(field.find_first_not_of(' ', scheme.size()), field.size()));
  return field;
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return bytes;
}

std::optional<std::string> PasswordOf(std::string_view basic) {
  const auto decoded = DecodeBase64(basic);
  const size_t colon = decoded ? decoded->find(':') : std::string::npos;
  if (colon == std::string::npos) return std::nullopt;
  return decoded->substr(colon + 1);
}

// Looks at every byte of `candidate`, wherever the first difference is.
bool SameBytes(std::string_view candidate, std::string_view key) {
  unsigned difference = candidate.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < candidate.size(); ++i) {
    difference |= static_cast<uint8_t>(candidate[i] ^ key[i % key.size()]);
  }
  return difference == 0;
}

Result<std::vector<std::string>> ReadKeys(const std::filesystem::path& file) {
  std::vector<std::string> keys;
  if (file.empty()) return keys;
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxKeyFile));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    constexpr std::string_view kBlank = " \t\r";
    line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
    line.remove_suffix(line.size() - (line.find_last_not_of(kBlank) + 1));
    if (!line.empty() && !line.starts_with('#')) keys.emplace_back(line);
  }
  if (keys.empty()) return MakeError("{}: no key in it; write one per line", file.string());
  return keys;
}

}  // namespace

Result<std::unique_ptr<ApiKeys>> ApiKeys::Create(std::vector<std::string> given,
                                                 std::filesystem::path file) {
  if (std::ranges::any_of(given, &std::string::empty)) {
    return MakeError("an API key is empty; leave --api-key out to serve without keys");
  }
  std::unique_ptr<ApiKeys> keys(new ApiKeys(std::move(given), std::move(file)));
  HB_RETURN_IF_ERROR(keys->Reload());
  return keys;
}

Status ApiKeys::Reload() {
  HB_ASSIGN_OR_RETURN(auto keys, ReadKeys(file_));
  const std::lock_guard lock(mutex_);
  of_file_ = std::move(keys);
  return {};
}

size_t ApiKeys::shortest() const {
  const std::lock_guard lock(mutex_);
  size_t least = std::string::npos;
  for (const auto* keys : {&given_, &of_file_}) {
    for (const std::string& key : *keys) least = std::min(least, key.size());
  }
  return least;
}

std::optional<std::string> ApiKeys::ValidKey(const HttpFields& fields) const {
  const auto valid = [this](auto key) {
    return key && Holds(*key) ? std::optional<std::string>(*key) : std::nullopt;
  };
  if (auto key = valid(fields.Find("x-api-key"))) return key;
  const auto authorization = fields.Find("authorization");
  if (!authorization) return std::nullopt;
  if (const auto bearer = Credentials(*authorization, "bearer")) return valid(bearer);
  const auto basic = Credentials(*authorization, "basic");
  return basic ? valid(PasswordOf(*basic)) : std::nullopt;
}

bool ApiKeys::Holds(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  bool held = false;
  for (const std::string& known : given_) held |= SameBytes(key, known);
  for (const std::string& known : of_file_) held |= SameBytes(key, known);
  return held;
}

}  // namespace halfbyte
