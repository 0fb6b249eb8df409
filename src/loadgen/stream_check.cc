#include "loadgen/stream_check.h"

#include <simdjson.h>

#include <charconv>
#include <utility>

namespace halfbyte {

struct CompletionReader::Parser {
  simdjson::dom::parser dom;
};

CompletionReader::CompletionReader() : parser_(std::make_unique<Parser>()) {}
CompletionReader::~CompletionReader() = default;

Result<CompletionPiece> CompletionReader::Read(std::string_view json) {
  namespace dom = simdjson::dom;
  dom::element root;
  if (const auto error = parser_->dom.parse(json.data(), json.size()).get(root)) {
    return MakeError("not JSON ({}): {}", simdjson::error_message(error), json);
  }
  CompletionPiece piece;
  dom::element error;
  if (!root["error"].get(error)) {
    std::string_view code;
    piece.error_code = error["code"].get(code) ? "unknown" : std::string(code);
    return piece;
  }
  int64_t told = 0;
  if (!root["usage"]["completion_tokens"].get(told)) piece.completion_tokens = told;
  dom::array choices;
  if (root["choices"].get(choices)) return MakeError("no choices in {}", json);
  for (const dom::element choice : choices) {
    int64_t index = -1;
    std::string_view text;
    std::string_view finish_reason;
    dom::array ids;
    if (choice["index"].get(index) || index != 0 || choice["text"].get(text)) {
      return MakeError("no choice 0 with a text in {}", json);
    }
    piece.text += text;
    if (!choice["finish_reason"].get(finish_reason)) piece.finish_reason = finish_reason;
    if (choice["token_ids"].get(ids)) continue;
    for (const dom::element id : ids) {
      int64_t value = 0;
      if (id.get(value)) return MakeError("a token id is no number in {}", json);
      piece.ids.push_back(static_cast<int32_t>(value));
    }
  }
  return piece;
}

Result<StreamUpdate> StreamCheck::Feed(std::string_view bytes, CompletionReader& reader) {
  StreamUpdate update;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      line_.append(bytes);
      break;
    }
    if (line_.empty()) {
      HB_RETURN_IF_ERROR(TakeLine(bytes.substr(0, end), reader, update));
    } else {
      line_.append(bytes.substr(0, end));
      HB_RETURN_IF_ERROR(TakeLine(line_, reader, update));
      line_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
  return update;
}

Status StreamCheck::TakeLine(std::string_view line, CompletionReader& reader,
                             StreamUpdate& update) {
  constexpr std::string_view kData = "data: ", kReady = ": ready ";
  if (line.empty()) return {};
  if (line.starts_with(kReady)) {
    int64_t ready = 0;
    std::from_chars(line.data() + kReady.size(), line.data() + line.size(), ready);
    update.ready_ns.push_back(ready);
    return {};
  }
  if (line.front() == ':') return {};
  if (!line.starts_with(kData)) return MakeError("no event of a stream: {}", line);
  line.remove_prefix(kData.size());
  if (done_) return MakeError("an event behind [DONE]: {}", line);
  if (line == "[DONE]") {
    done_ = true;
    return {};
  }
  HB_ASSIGN_OR_RETURN(const CompletionPiece piece, reader.Read(line));
  return TakePiece(piece, update);
}

Status StreamCheck::TakePiece(const CompletionPiece& piece, StreamUpdate& update) {
  if (!piece.error_code.empty()) {
    error_code_ = piece.error_code;
    return {};
  }
  if (!finish_reason_.empty() && (!piece.ids.empty() || !piece.text.empty())) {
    return MakeError("tokens or text after the end ({})", finish_reason_);
  }
  if (expected_ != nullptr) {
    for (size_t i = 0; i < piece.ids.size(); ++i) {
      const size_t position = static_cast<size_t>(tokens_) + i;
      if (position >= expected_->ids.size()) return MakeError("token {} is one too many", position);
      if (piece.ids[i] != expected_->ids[position]) {
        return MakeError("token {} is {}, but {} when the request ran alone", position,
                         piece.ids[i], expected_->ids[position]);
      }
    }
    if (std::string_view(expected_->text).substr(text_bytes_, piece.text.size()) != piece.text) {
      return MakeError("the text differs from byte {} on: \"{}\"", text_bytes_, piece.text);
    }
  }
  text_bytes_ += piece.text.size();
  tokens_ += std::ssize(piece.ids);
  update.tokens += std::ssize(piece.ids);
  if (!piece.ids.empty()) ++update.events;
  if (!piece.finish_reason.empty()) finish_reason_ = piece.finish_reason;
  if (piece.completion_tokens) told_tokens_ = piece.completion_tokens;
  return {};
}

Status StreamCheck::End() const {
  if (!line_.empty()) return MakeError("the stream ends in the middle of a line");
  if (!done_) return MakeError("the stream ends without [DONE]");
  if (!error_code_.empty()) return {};
  if (finish_reason_.empty()) return MakeError("the stream ends without a finish_reason");
  if (told_tokens_ && *told_tokens_ != tokens_) {
    return MakeError("usage says {} tokens, {} came", *told_tokens_, tokens_);
  }
  if (expected_ == nullptr) return {};
  if (tokens_ != std::ssize(expected_->ids) || text_bytes_ != expected_->text.size()) {
    return MakeError(
        "{} tokens and {} bytes of text came, but {} and {} when the request ran alone", tokens_,
        text_bytes_, expected_->ids.size(), expected_->text.size());
  }
  if (finish_reason_ != expected_->finish_reason) {
    return MakeError("finish_reason is {}, but {} when the request ran alone", finish_reason_,
                     expected_->finish_reason);
  }
  return {};
}

}  // namespace halfbyte
