#include "http/http.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

namespace halfbyte {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool SameWithoutCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

class CompleteReply : public HttpReply {
 public:
  explicit CompleteReply(HttpResponse response) : response_(std::move(response)) {}
  Output Poll() override {
    if (std::chrono::steady_clock::now() < response_.not_before) return {};
    return {.head = std::move(response_.head), .bytes = std::move(response_.body), .done = true};
  }

 private:
  HttpResponse response_;
};

}  // namespace

std::optional<std::string_view> HttpFields::Find(std::string_view name) const {
  for (const auto& [key, value] : fields_) {
    if (SameWithoutCase(key, name)) return value;
  }
  return std::nullopt;
}

std::unique_ptr<HttpReply> ReplyWith(HttpResponse response) {
  return std::make_unique<CompleteReply>(std::move(response));
}

std::string ClientAddress(std::string_view peer) {
  std::string_view address = peer.substr(0, peer.rfind(':'));
  if (!address.starts_with('[')) return std::string(address);
  address = address.substr(1, address.size() - 2);
  in6_addr bytes{};
  ::inet_pton(AF_INET6, std::string(address).c_str(), &bytes);
  if (IN6_IS_ADDR_V4MAPPED(&bytes)) return std::string(address.substr(address.rfind(':') + 1));
  std::fill(std::begin(bytes.s6_addr) + 8, std::end(bytes.s6_addr), uint8_t{0});
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET6, &bytes, text.data(), text.size());
  return text.data();
}

bool IsJsonContentType(std::string_view content_type) {
  size_t end = content_type.find(';');
  if (!SameWithoutCase(Trimmed(content_type.substr(0, end)), "application/json")) return false;
  while (end != content_type.npos) {
    content_type.remove_prefix(end + 1);
    end = content_type.find(';');
    const std::string_view parameter = Trimmed(content_type.substr(0, end));
    if (!parameter.empty() && !SameWithoutCase(parameter, "charset=utf-8") &&
        !SameWithoutCase(parameter, "charset=\"utf-8\"")) {
      return false;
    }
  }
  return true;
}

}  // namespace halfbyte
