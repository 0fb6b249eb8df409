#include "http/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <random>

#include "base/check.h"

namespace halfbyte {
namespace {

namespace beast_http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::string_view;
using State = RequestParser::State;

std::string NewId() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

bool IsRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::string_view View(string_view text) { return {text.data(), text.size()}; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

// Whether `bytes` may be the start of what stands before a chunk: the end of the line of the one
// before, the chunk's size in hex, an extension, the end of the line.
bool MayBeginChunk(std::string_view bytes, bool first) {
  for (const char c : std::string_view(first ? "" : "\r\n")) {
    if (bytes.empty()) return true;
    if (bytes.front() != c) return false;
    bytes.remove_prefix(1);
  }
  const size_t digits =
      std::ranges::find_if(bytes, [](char c) { return HexDigit(c) < 0; }) - bytes.begin();
  if (digits == bytes.size()) return true;
  constexpr std::string_view kFollows = "; \t\r";
  return digits > 0 && kFollows.find(bytes[digits]) != kFollows.npos;
}

// "http://host/path?query", as proxies send it -> "/path?query".
std::string_view WithoutAuthority(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!boost::beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    const size_t path = target.find_first_of("/?", scheme.size());
    return path == target.npos ? "/" : target.substr(path);
  }
  return target;
}

}  // namespace

// Beast splits the bytes; what they mean for us is decided here.
class RequestParser::Parser : public beast_http::basic_parser<true> {
 public:
  explicit Parser(const RequestLimits& limits) : limits_(limits) {
    body_limit(boost::none);  // ours are checked after the head, which a handler sees first
    header_limit(static_cast<uint32_t>(limits.head_bytes));
    request.id = NewId();
  }

  size_t Push(std::string_view bytes) {
    if (state == State::kHead) return PushHead(bytes);
    if (request.content_length.value_or(0) > limits_.body_bytes) FailBodySize();
    size_t taken = 0;
    while (state == State::kBody) {
      if (chunked() && !MayGoOn(bytes.substr(taken))) break;
      const int64_t body = std::ssize(request.body);
      const size_t count = Put(bytes.substr(taken));
      taken += count;
      // What stands between pieces of the body, complete or not.
      const int64_t framing = static_cast<int64_t>(count) - (std::ssize(request.body) - body);
      const int64_t begun = need_more_ ? std::ssize(bytes.substr(taken)) : 0;
      if (state != State::kFault && std::max(framing, begun) > limits_.head_bytes) {
        Fail(431, "headers_too_large",
             fmt::format("the head of a chunk or the trailers have more than {} bytes",
                         limits_.head_bytes));
      }
      if (need_more_) break;
    }
    return taken;
  }

  State state = State::kHead;
  HttpFault fault;
  HttpRequest request;
  int version = 11;
  bool expects_continue = false;
  bool started = false;

 private:
  // Whether Beast can be given these bytes of chunks.
  bool MayGoOn(std::string_view bytes) {
    if (bytes.size() > chunk_left_ &&
        !MayBeginChunk(bytes.substr(chunk_left_), /*first=*/!had_chunk_)) {
      FailBadRequest("a chunk does not begin with its size");
      return false;
    }
    // What is left of chunks is never shorter, and Beast 1.81 asserts that it need not look at
    // less of the last one.
    constexpr std::string_view kShortestEnd = "0\r\n\r\n";
    return bytes.size() >= kShortestEnd.size();
  }

  // Takes nothing before the head is complete, so that its bytes mean the same however they come;
  // but what spoils it is told at once.
  size_t PushHead(std::string_view bytes) {
    // Some clients end a body with a line that does not belong to it.
    size_t skipped = 0;
    while (!started && bytes.substr(skipped).starts_with("\r\n")) skipped += 2;
    const std::string_view head = bytes.substr(skipped);
    if (head.empty() || (!started && head == "\r")) return skipped;
    started = true;
    const std::string_view complete =
        CompleteHead(head.substr(0, static_cast<size_t>(limits_.head_bytes)));
    if (!complete.empty()) return skipped + Put(complete);
    if (state == State::kHead && std::ssize(head) > limits_.head_bytes) FailHeadSize(head);
    return skipped;
  }

  // From the beginning of `bytes` to the empty line; empty if there is none yet.
  std::string_view CompleteHead(std::string_view bytes) {
    for (; scanned_ < bytes.size() && state == State::kHead; ++scanned_) {
      const char c = bytes[scanned_];
      const char before = scanned_ > 0 ? bytes[scanned_ - 1] : '\0';
      if ((c == '\n') != (before == '\r')) {
        FailBadRequest("lines end with CR LF, and neither stands alone");
      } else if (before == '\n' && (c == ' ' || c == '\t')) {
        FailBadRequest("a header field continues on the next line");
      } else if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r' && c != '\n') {
        FailBadRequest("there is a control character in the head");
      } else if (bytes.substr(0, scanned_ + 1).ends_with("\r\n\r\n")) {
        return bytes.substr(0, scanned_ + 1);
      }
    }
    return {};
  }

  size_t Put(std::string_view bytes) {
    error_code error;
    const size_t count = put({bytes.data(), bytes.size()}, error);
    need_more_ = error == beast_http::error::need_more || (!error && count == bytes.size());
    if (error && error != beast_http::error::need_more && state != State::kFault) {
      FailBadRequest(error.message());
    }
    return count;
  }

  void Fail(int status, std::string code, std::string message) {
    state = State::kFault;
    fault = {.status = status, .code = std::move(code), .message = std::move(message)};
  }
  void FailBadRequest(std::string_view what) {
    Fail(400, "bad_request", fmt::format("this is not a request that can be served: {}", what));
  }
  void FailHeadSize(std::string_view head) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    const size_t target = line.find(' ');
    if (target == line.npos) {
      FailBadRequest("there is no request line");
    } else if (std::ssize(line.substr(target + 1, line.find(' ', target + 1) - target - 1)) >
               limits_.target_bytes) {
      FailTargetSize();
    } else {
      Fail(431, "headers_too_large",
           fmt::format("the head of the request has more than {} bytes", limits_.head_bytes));
    }
  }
  void FailTargetSize() {
    Fail(414, "url_too_long", fmt::format("the URL has more than {} bytes", limits_.target_bytes));
  }
  void FailBodySize() {
    Fail(413, "body_too_large", fmt::format("the body has more than {} bytes", limits_.body_bytes));
  }
  // Ends a callback of Beast whose fault is known already.
  void Leave(error_code& error) { error = beast_http::error::bad_value; }

  void on_request_impl(beast_http::verb, string_view method, string_view target, int version_sent,
                       error_code& error) override {
    request.method = View(method);
    version = version_sent;
    if (std::ssize(target) > limits_.target_bytes) {
      FailTargetSize();
      return Leave(error);
    }
    const std::string_view origin = WithoutAuthority(View(target));
    const size_t question = origin.find('?');
    const std::string_view raw_path = origin.substr(0, question);
    if (question != origin.npos) request.query = origin.substr(question + 1);
    auto path = PercentDecoded(raw_path.empty() ? "/" : raw_path);
    const bool is_path = raw_path.empty() || raw_path.starts_with('/');
    if (!path || (!is_path && (*path != "*" || request.method != "OPTIONS"))) {
      FailBadRequest("the URL is neither a path nor http://host/path, or has a broken %XX");
      return Leave(error);
    }
    request.path = *std::move(path);
  }

  void on_field_impl(beast_http::field known, string_view name, string_view value,
                     error_code& error) override {
    if (state != State::kHead) return;  // trailers say nothing that we use
    using beast_http::field;
    if ((known == field::host || known == field::content_length) &&
        request.fields.Find(View(name))) {
      FailBadRequest(fmt::format("there are two fields {}", View(name)));
      return Leave(error);
    }
    request.fields.Add(std::string(name), std::string(value));
  }

  void on_header_impl(error_code& error) override {
    if (const auto id = request.fields.Find("x-request-id"); id && IsRequestId(*id)) {
      request.id = *id;
    }
    if (const std::string_view what = WhyAmbiguous(); !what.empty()) {
      FailBadRequest(what);
      return Leave(error);
    }
    if (const auto length = content_length()) {
      request.content_length =
          static_cast<int64_t>(std::min<uint64_t>(*length, std::numeric_limits<int64_t>::max()));
    }
    request.has_body = chunked() || request.content_length.value_or(0) > 0;
    const auto expect = request.fields.Find("expect");
    expects_continue = expect && boost::beast::iequals(*expect, "100-continue") && version == 11;
    state = request.has_body ? State::kBody : State::kDone;
  }

  std::string_view WhyAmbiguous() const {
    if (const auto coding = request.fields.Find("transfer-encoding")) {
      if (!chunked() || !boost::beast::iequals(*coding, "chunked")) {
        return "the only Transfer-Encoding is chunked";
      }
      if (version == 10) return "HTTP/1.0 has no Transfer-Encoding";
    }
    if (const auto length = request.fields.Find("content-length");
        length && length->find(',') != length->npos) {
      return "Content-Length is a list";
    }
    if (version == 11 && !request.fields.Find("host")) return "there is no field Host";
    return {};
  }

  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(string_view body, error_code&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(uint64_t size, string_view, error_code& error) override {
    had_chunk_ = true;
    chunk_left_ = size;
    if (size > static_cast<uint64_t>(limits_.body_bytes - std::ssize(request.body))) {
      FailBodySize();
      Leave(error);
    }
  }
  size_t on_chunk_body_impl(uint64_t, string_view body, error_code& error) override {
    chunk_left_ -= body.size();
    return on_body_impl(body, error);
  }
  void on_finish_impl(error_code&) override { state = State::kDone; }
  void on_response_impl(int, string_view, int, error_code&) override {
    HB_CHECK(false, "a request was parsed as a response");
  }

  const RequestLimits limits_;
  size_t scanned_ = 0;  // bytes of the head that CompleteHead has seen
  bool need_more_ = false;
  bool had_chunk_ = false;
  uint64_t chunk_left_ = 0;  // bytes of the chunk that have not come
};

RequestParser::RequestParser(const RequestLimits& limits)
    : parser_(std::make_unique<Parser>(limits)) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::Push(std::string_view bytes) { return parser_->Push(bytes); }
RequestParser::State RequestParser::state() const { return parser_->state; }
bool RequestParser::started() const { return parser_->started; }
const HttpFault& RequestParser::fault() const { return parser_->fault; }
HttpRequest& RequestParser::request() { return parser_->request; }
bool RequestParser::http_1_1() const { return parser_->version == 11; }
bool RequestParser::keep_alive() const { return parser_->keep_alive(); }
bool RequestParser::expects_continue() const { return parser_->expects_continue; }

}  // namespace halfbyte
