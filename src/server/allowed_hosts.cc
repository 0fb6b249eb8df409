#include "server/allowed_hosts.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace halfbyte {
namespace {

std::string InSmallLetters(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
  return small;
}

bool IsAddress(int family, const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(family, text.c_str(), address.data()) == 1;
}

// "name:8000", "name", "name." -> "name"; none if what follows the name is no port.
std::optional<std::string_view> WithoutPort(std::string_view host, size_t name_end) {
  const std::string_view port = host.substr(name_end);
  const bool is_port =
      port.empty() || (port.front() == ':' && port.find_first_not_of("0123456789", 1) == port.npos);
  if (!is_port) return std::nullopt;
  return host.substr(0, name_end);
}

bool Matches(std::string_view host, std::string_view name) {
  if (name == "*") return true;
  if (!name.starts_with('.')) return host == name;
  return host.ends_with(name) || host == name.substr(1);
}

}  // namespace

AllowedHosts::AllowedHosts(std::vector<std::string> names) {
  for (const std::string& name : names) names_.push_back(InSmallLetters(name));
  names_.emplace_back(".localhost");
}

bool AllowedHosts::Admit(std::string_view host) const {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == host.npos || !WithoutPort(host, end + 1)) return false;
    return IsAddress(AF_INET6, std::string(host.substr(1, end - 1)));
  }
  const auto name = WithoutPort(host, std::min(host.find(':'), host.size()));
  if (!name) return false;
  std::string small = InSmallLetters(*name);
  if (IsAddress(AF_INET, small)) return true;
  if (small.ends_with('.')) small.pop_back();  // the root of all names
  return std::ranges::any_of(names_,
                             [&](const std::string& known) { return Matches(small, known); });
}

std::string AllowedHosts::Fault(std::string_view name) {
  if (name == "*") return "";
  const bool plain = std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_.").find(c) != std::string_view::npos;
  });
  if (plain && !name.empty() && name != "." && !name.ends_with('.')) return "";
  return fmt::format(
      "--allowed-hosts {} is no name of a host: give one such as llm.example.com, without scheme "
      "and port, .example.com for all below it, or *",
      name);
}

}  // namespace halfbyte
