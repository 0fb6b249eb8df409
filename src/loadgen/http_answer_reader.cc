#include "loadgen/http_answer_reader.h"

#include <algorithm>
#include <charconv>

namespace halfbyte {
namespace {

constexpr size_t kMaxLine = 64 * 1024;

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The whole of `text` as a number, up to an optional ';'.
std::optional<int64_t> Number(std::string_view text, int base) {
  text = Trimmed(text.substr(0, text.find(';')));
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string_view> HttpAnswerHead::Find(std::string_view lower_case_name) const {
  for (const auto& [name, value] : fields) {
    if (name == lower_case_name) return value;
  }
  return std::nullopt;
}

Status HttpAnswerReader::Feed(std::string_view bytes, std::string& body) {
  while (!bytes.empty()) {
    if (state_ == State::kComplete) {
      return MakeError("{} bytes came behind the end of an answer", bytes.size());
    }
    if (state_ == State::kUntilEnd) {
      body.append(bytes);
      return {};
    }
    if (state_ == State::kLength || state_ == State::kChunk) {
      const size_t count = std::min(bytes.size(), static_cast<size_t>(remaining_));
      body.append(bytes.substr(0, count));
      bytes.remove_prefix(count);
      remaining_ -= static_cast<int64_t>(count);
      if (remaining_ == 0) {
        state_ = state_ == State::kLength ? State::kComplete : State::kChunkEnd;
      }
      continue;
    }
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (line_.size() > kMaxLine) return MakeError("a line of an answer's head has no end");
    if (end == std::string_view::npos) return {};
    bytes.remove_prefix(end + 1);
    if (line_.empty() || line_.back() != '\r') {
      return MakeError("a line of an answer's head does not end with CR LF: \"{}\"", line_);
    }
    line_.pop_back();
    HB_RETURN_IF_ERROR(TakeLine(line_));
    line_.clear();
  }
  return {};
}

Status HttpAnswerReader::TakeLine(std::string_view line) {
  switch (state_) {
    case State::kHead:
      return line.empty() ? FinishHead() : TakeHeadLine(line);
    case State::kChunkSize: {
      const std::optional<int64_t> size = Number(line, 16);
      if (!size) return MakeError("\"{}\" is no chunk size", line);
      remaining_ = *size;
      state_ = *size == 0 ? State::kTrailer : State::kChunk;
      return {};
    }
    case State::kChunkEnd:
      if (!line.empty()) return MakeError("a chunk is longer than its size says");
      state_ = State::kChunkSize;
      return {};
    default:  // kTrailer: ends with an empty line
      if (line.empty()) state_ = State::kComplete;
      return {};
  }
}

Status HttpAnswerReader::TakeHeadLine(std::string_view line) {
  if (open_head_.status == 0) {
    const bool is_http = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
    const std::optional<int64_t> status = is_http ? Number(line.substr(9, 3), 10) : std::nullopt;
    if (!status || *status < 100) return MakeError("\"{}\" is no status line of HTTP/1.1", line);
    open_head_.status = static_cast<int>(*status);
    keep_alive_ = line.starts_with("HTTP/1.1");
    return {};
  }
  const size_t colon = line.find(':');
  if (colon == 0 || colon == std::string_view::npos) {
    return MakeError("\"{}\" is no header field", line);
  }
  open_head_.fields.emplace_back(LowerCase(line.substr(0, colon)), Trimmed(line.substr(colon + 1)));
  return {};
}

Status HttpAnswerReader::FinishHead() {
  if (open_head_.status == 0) return MakeError("an answer starts with an empty line");
  if (open_head_.status < 200) {  // 100 Continue: the answer itself follows
    open_head_ = {};
    return {};
  }
  head_ = std::move(open_head_);
  if (const auto connection = head_->Find("connection")) {
    if (LowerCase(*connection) == "close") keep_alive_ = false;
  }
  const auto coding = head_->Find("transfer-encoding");
  const auto length = head_->Find("content-length");
  if (coding && length) return MakeError("an answer has both a length and chunks");
  if (coding) {
    if (LowerCase(*coding) != "chunked") return MakeError("transfer coding {} came", *coding);
    state_ = State::kChunkSize;
  } else if (length) {
    const std::optional<int64_t> bytes = Number(*length, 10);
    if (!bytes) return MakeError("\"{}\" is no Content-Length", *length);
    remaining_ = *bytes;
    state_ = *bytes == 0 ? State::kComplete : State::kLength;
  } else if (head_->status == 204 || head_->status == 304) {
    state_ = State::kComplete;
  } else {
    keep_alive_ = false;
    state_ = State::kUntilEnd;
  }
  return {};
}

Status HttpAnswerReader::End() {
  keep_alive_ = false;
  if (state_ == State::kUntilEnd) state_ = State::kComplete;
  if (state_ == State::kComplete) return {};
  if (!head_) return MakeError("the connection was closed before an answer");
  return MakeError("the connection was closed in the middle of an answer of status {}",
                   head_->status);
}

}  // namespace halfbyte
