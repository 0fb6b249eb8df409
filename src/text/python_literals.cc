#include "text/python_literals.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace halfbyte {
namespace {

struct Token {
  enum class Kind {
    kName,    // also numbers and keywords
    kString,  // `text` is its value, if it is a plain literal
    kOther,   // one character
    kEnd,     // of a statement
  };
  Kind kind = Kind::kEnd;
  std::string text;
  bool literal = false;      // of a string: not an f-string, not bytes
  bool begins_line = false;  // of a statement's first token: nothing stands before it
};

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         (c & 0x80) != 0;
}

// -1 if it is none of the base.
int DigitOf(char c, int base) {
  const int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : base;
  return digit < base ? digit : -1;
}

void AppendUtf8(uint32_t c, std::string& text) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

// What stands between the quotes -> the string's value. Nothing if an escape names a character by
// its name, half a surrogate pair, or none that exists.
std::optional<std::string> Unescaped(std::string_view body) {
  constexpr std::string_view kPlain = "\\'\"abfnrtv";
  constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
  std::string text;
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 == body.size()) {
      text += body[i];
      continue;
    }
    const char kind = body[++i];
    const bool octal = DigitOf(kind, 8) >= 0;
    const size_t most = octal ? 3 : kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (most == 0) {
      const size_t plain = kPlain.find(kind);
      if (kind == 'N') return std::nullopt;
      if (plain != kPlain.npos) {
        text += kMeaning[plain];
      } else if (kind != '\n') {  // a line that goes on
        text += {'\\', kind};     // Python keeps what it does not know
      }
      continue;
    }
    if (!octal) ++i;
    uint32_t character = 0;
    size_t digits = 0;
    for (; digits < most && i < body.size(); ++digits, ++i) {
      const int digit = DigitOf(body[i], octal ? 8 : 16);
      if (digit < 0) break;
      character = character * (octal ? 8 : 16) + static_cast<uint32_t>(digit);
    }
    --i;
    const bool surrogate = character >= 0xD800 && character < 0xE000;
    if ((!octal && digits < most) || surrogate || character > 0x10FFFF) return std::nullopt;
    AppendUtf8(character, text);
  }
  return text;
}

// Cuts the text into statements. Knows brackets and strings, and nothing else of the language.
class Lexer {
 public:
  Lexer(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  // Empty at the end of the text.
  Result<std::vector<Token>> NextStatement() {
    std::vector<Token> statement;
    while (at_ < text_.size()) {
      HB_ASSIGN_OR_RETURN(std::optional<Token> token, Next());
      if (!token) continue;
      if (token->kind != Token::Kind::kEnd) {
        statement.push_back(*std::move(token));
      } else if (!statement.empty()) {
        return statement;
      }
    }
    if (depth_ > 0) return MakeError("{}: a bracket does not end", source_);
    return statement;
  }

 private:
  // Nothing for white space and comments.
  Result<std::optional<Token>> Next() {
    const size_t begin = at_;
    const bool begins_line = begin == 0 || text_[begin - 1] == '\n';
    const char c = text_[at_];
    if (c == '\n' || (c == ';' && depth_ == 0)) {
      ++at_;
      line_ += c == '\n' ? 1 : 0;
      if (c == '\n' && depth_ > 0) return std::nullopt;
      return Token{};
    }
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
      return std::nullopt;
    }
    if (c == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') {
      at_ += 2;
      ++line_;
      return std::nullopt;
    }
    if (c == '"' || c == '\'') return String(begin);
    if (IsNameByte(c)) {
      while (at_ < text_.size() && IsNameByte(text_[at_])) ++at_;
      const std::string_view name = text_.substr(begin, at_ - begin);
      if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'') && IsPrefix(name)) {
        return String(begin);
      }
      return Token{
          .kind = Token::Kind::kName, .text = std::string(name), .begins_line = begins_line};
    }
    ++at_;
    if (c == ' ' || c == '\t' || c == '\f' || c == '\r') return std::nullopt;
    if (std::string_view("([{").find(c) != std::string_view::npos) ++depth_;
    if (std::string_view(")]}").find(c) != std::string_view::npos && --depth_ < 0) {
      return MakeError("{}: line {}: a bracket closes nothing", source_, line_);
    }
    return Token{.kind = Token::Kind::kOther, .text = {c}};
  }

  static bool IsPrefix(std::string_view name) {
    return name.size() <= 2 && std::ranges::all_of(name, [](char c) {
             return std::string_view("rRuUbBfFtT").find(c) != std::string_view::npos;
           });
  }

  // at_ is at the first quote, its prefix begins at `begin`.
  Result<std::optional<Token>> String(size_t begin) {
    const std::string_view prefix = text_.substr(begin, at_ - begin);
    const int64_t first_line = line_;
    const std::string_view three = text_.substr(at_, 3);
    const bool triple = three == "\"\"\"" || three == "'''";
    const std::string_view quotes = text_.substr(at_, triple ? 3 : 1);
    at_ += quotes.size();
    const size_t body = at_;
    for (; at_ < text_.size() && !text_.substr(at_).starts_with(quotes); ++at_) {
      if (text_[at_] == '\n' && !triple) break;
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      line_ += text_[at_] == '\n' ? 1 : 0;
    }
    if (!text_.substr(at_).starts_with(quotes)) {
      return MakeError("{}: line {}: a string does not end", source_, first_line);
    }
    const std::string_view inside = text_.substr(body, at_ - body);
    at_ += quotes.size();
    Token token{.kind = Token::Kind::kString};
    const bool raw = prefix == "r" || prefix == "R";
    if (!raw && !prefix.empty() && prefix != "u" && prefix != "U") return token;
    if (auto value = raw ? std::string(inside) : Unescaped(inside)) {
      token.text = *std::move(value);
      token.literal = true;
    }
    return token;
  }

  const std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  int64_t line_ = 1;
  int64_t depth_ = 0;  // of brackets
};

// The value of an assignment, token by token. All readers give nothing for what is no literal.
class ValueReader {
 public:
  explicit ValueReader(std::span<const Token> tokens) : tokens_(tokens) {}

  bool at_end() const { return tokens_.empty(); }

  bool Take(char c) {
    if (tokens_.empty() || !Is(tokens_[0], c)) return false;
    tokens_ = tokens_.subspan(1);
    return true;
  }

  std::optional<std::string> String() {
    size_t brackets = 0;
    while (Take('(')) ++brackets;
    std::optional<std::string> value;
    while (!tokens_.empty() && tokens_[0].kind == Token::Kind::kString) {
      if (!tokens_[0].literal) return std::nullopt;
      if (!value) value.emplace();
      *value += tokens_[0].text;
      tokens_ = tokens_.subspan(1);
    }
    for (; brackets > 0; --brackets) {
      if (!Take(')')) return std::nullopt;
    }
    return value;
  }

  std::optional<std::map<std::string, std::string>> Table() {
    if (!Take('{')) return std::nullopt;
    std::map<std::string, std::string> table;
    while (!Take('}')) {
      auto key = String();
      if (!key || !Take(':')) return std::nullopt;
      auto value = String();
      if (!value) return std::nullopt;
      table.insert_or_assign(*std::move(key), *std::move(value));
      if (Take('}')) break;
      if (!Take(',')) return std::nullopt;
    }
    return table;
  }

  static bool Is(const Token& token, char c) {
    return token.kind == Token::Kind::kOther && token.text[0] == c;
  }

 private:
  std::span<const Token> tokens_;
};

// NAME = value, or NAME: type = value -> what is behind the =; empty for other statements.
std::span<const Token> ValueOf(std::span<const Token> statement) {
  size_t equals = 1;
  if (statement.size() > 1 && ValueReader::Is(statement[1], ':')) {
    while (equals < statement.size() && !ValueReader::Is(statement[equals], '=')) ++equals;
  }
  if (equals >= statement.size() || !ValueReader::Is(statement[equals], '=')) return {};
  return statement.subspan(equals + 1);
}

void ReadStatement(std::span<const Token> statement, PythonLiterals& literals) {
  const std::string& name = statement[0].text;
  literals.strings.erase(name);
  literals.tables.erase(name);
  const std::span<const Token> value = ValueOf(statement);
  ValueReader as_string(value);
  if (auto text = as_string.String(); text && as_string.at_end()) {
    literals.strings[name] = *std::move(text);
  }
  ValueReader as_table(value);
  if (auto table = as_table.Table(); table && as_table.at_end()) {
    literals.tables[name] = *std::move(table);
  }
}

}  // namespace

Result<PythonLiterals> ReadPythonLiterals(std::string_view text, const std::string& source) {
  if (!IsValidUtf8(text)) return MakeError("{}: it is not UTF-8", source);
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  // As Python reads lines.
  std::string lines;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pair = text[i] == '\r' && text.substr(i + 1).starts_with('\n');
    if (!pair) lines += text[i] == '\r' ? '\n' : text[i];
  }
  Lexer lexer(lines, source);
  PythonLiterals literals;
  for (;;) {
    HB_ASSIGN_OR_RETURN(const std::vector<Token> statement, lexer.NextStatement());
    if (statement.empty()) return literals;
    const bool named = statement[0].kind == Token::Kind::kName && statement[0].begins_line;
    if (named) ReadStatement(statement, literals);
  }
}

}  // namespace halfbyte
