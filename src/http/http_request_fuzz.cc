// Any bytes from a client, in any pieces: the same requests, or a fault; never a request that
// breaks what http.h says of one. The input is what is sent; it is cut at places drawn from its own
// bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "http/request_parser.h"

namespace {

using halfbyte::HttpRequest;
using halfbyte::RequestParser;
using State = RequestParser::State;

constexpr halfbyte::RequestLimits kLimits = {
    .head_bytes = 300, .target_bytes = 60, .body_bytes = 200};

void CheckRequest(const HttpRequest& request) {
  HB_CHECK(request.path.starts_with('/') || request.path == "*", "path {}", request.path);
  HB_CHECK(std::ssize(request.path) <= kLimits.target_bytes, "{} bytes", request.path.size());
  HB_CHECK(std::ssize(request.body) <= kLimits.body_bytes, "{} bytes", request.body.size());
  HB_CHECK(!request.id.empty() && request.id.size() <= 128, "{} bytes", request.id.size());
  HB_CHECK(!request.method.empty() && (request.has_body || request.body.empty()), "a false body");
}

struct Parsed {
  std::vector<HttpRequest> requests;
  State end = State::kHead;  // of what follows them
};

// `next_end(end)`: where the bytes that have come so far end, after they ended at `end`.
template <class NextEnd>
Parsed Parse(std::string_view bytes, const NextEnd& next_end) {
  Parsed parsed;
  size_t taken = 0, end = 0;
  for (bool more = true; more;) {
    RequestParser parser(kLimits);
    while (parser.state() != State::kDone && parser.state() != State::kFault) {
      const State before = parser.state();
      const size_t count = parser.Push(bytes.substr(taken, end - taken));
      HB_CHECK(count <= end - taken, "{} of {} bytes taken", count, end - taken);
      taken += count;
      if (parser.state() != before) continue;
      if (end == bytes.size()) break;
      end = std::min(bytes.size(), next_end(end));
    }
    parsed.end = parser.state();
    more = parser.state() == State::kDone;
    if (!more) break;
    CheckRequest(parser.request());
    parsed.requests.push_back(parser.request());
  }
  return parsed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Parsed whole = Parse(bytes, [&](size_t) { return bytes.size(); });
  uint32_t draw = 1;
  for (const char c : bytes) draw = draw * 31 + static_cast<uint8_t>(c);
  const Parsed parts = Parse(bytes, [&](size_t end) {
    draw = draw * 1664525 + 1013904223;
    return end + 1 + (draw >> 28);
  });
  HB_CHECK(whole.end == parts.end, "{} in one piece, {} in parts", static_cast<int>(whole.end),
           static_cast<int>(parts.end));
  HB_CHECK(whole.requests.size() == parts.requests.size(), "{} requests, {} in parts",
           whole.requests.size(), parts.requests.size());
  for (size_t i = 0; i < whole.requests.size(); ++i) {
    const HttpRequest &a = whole.requests[i], &b = parts.requests[i];
    HB_CHECK(a.method == b.method && a.path == b.path && a.query == b.query && a.body == b.body &&
                 std::equal(a.fields.begin(), a.fields.end(), b.fields.begin(), b.fields.end()),
             "request {} differs in parts", i);
  }
  return 0;
}
