#include "text/regex_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

namespace halfbyte {
namespace {

// Unicode's definition of a word character as Oniguruma has it. PCRE2's own \w lacks marks.
constexpr std::string_view kWord = "A-Za-z0-9_\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// The ASCII members of a property. Put beside the property in a class they change nothing but
// speed: PCRE2 looks them up in a bitmap.
std::string_view AsciiMembers(std::string_view property) {
  static constexpr std::pair<std::string_view, std::string_view> kMembers[] = {
      {"L", "A-Za-z"},      {"Lu", "A-Z"},
      {"Ll", "a-z"},        {"N", "0-9"},
      {"Nd", "0-9"},        {"P", "!-#%-*,-/:;?@\\[-\\]_{}"},
      {"S", "$+<->\\^`|~"}, {"White_Space", "\\t-\\r "},
  };
  for (const auto& [name, members] : kMembers) {
    if (name == property) return members;
  }
  return "";
}

bool IsHex(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// Whether PCRE2 knows `name` as a script. Bare script names mean script extensions to PCRE2 (since
// 10.40) but the script itself to Oniguruma, so they are spelled sc:NAME.
bool IsScript(std::string_view name) {
  const std::string pattern = "\\p{sc:" + std::string(name) + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> Run() {
    while (!in_.empty()) {
      switch (in_.front()) {
        case '\\':
          HB_RETURN_IF_ERROR(Escape(/*in_class=*/false));
          break;
        case '[':
          HB_RETURN_IF_ERROR(Class());
          break;
        case '(':
          HB_RETURN_IF_ERROR(Group());
          break;
        case '{':
          HB_RETURN_IF_ERROR(Interval());
          break;
        default:
          Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  static tl::unexpected<Error> Unsupported(std::string_view what) {
    return MakeError("{} is not supported in a tokenizer regex", what);
  }

  void Copy(size_t count) {
    out_ += in_.substr(0, count);
    in_.remove_prefix(std::min(count, in_.size()));
  }

  // \s is White_Space: PCRE2's own also holds U+180E, which lost the property in Unicode 6.3.
  // Properties: bare ones become classes, so that their ASCII members can stand beside them.
  void Property(std::string_view name, bool negated, bool in_class) {
    const std::string spelled =
        name.size() > 2 && IsScript(name) ? "sc:" + std::string(name) : std::string(name);
    if (negated && in_class) {
      out_ += "\\P{" + spelled + "}";
    } else if (in_class) {
      out_ += AsciiMembers(name);
      out_ += "\\p{" + spelled + "}";
    } else {
      out_ += negated ? "[^" : "[";
      out_ += AsciiMembers(name);
      out_ += "\\p{" + spelled + "}]";
    }
  }

  Status PropertyEscape(bool in_class) {  // at \p or \P
    bool negated = in_[1] == 'P';
    std::string_view name;
    if (in_.size() > 2 && in_[2] == '{') {
      const size_t end = in_.find('}');
      if (end == std::string_view::npos) return MakeError("\\p{{ lacks its closing brace");
      name = in_.substr(3, end - 3);
      in_.remove_prefix(end + 1);
    } else {
      name = in_.substr(2, 1);
      in_.remove_prefix(std::min<size_t>(3, in_.size()));
    }
    if (!name.empty() && name.front() == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '&' || c == '=' || c == ':';
    });
    if (name.empty() || name.size() > 64 || !plain) return Unsupported("this \\p{...} name");
    Property(name, negated, in_class);
    return {};
  }

  Status CodePointEscape() {  // at \x or \u
    std::string_view digits;
    size_t length = 0;
    if (in_.substr(1, 2) == "x{") {
      const size_t end = in_.find('}');
      if (end == std::string_view::npos) return MakeError("\\x{{ lacks its closing brace");
      digits = in_.substr(3, end - 3);
      length = end + 1;
    } else {
      const size_t count = in_[1] == 'u' ? 4 : 2;
      digits = in_.substr(2, count);
      length = 2 + count;
      if (digits.size() != count) return Unsupported("a short \\x or \\u escape");
      // Two digits are one byte to Oniguruma, and bytes from 80 on are no characters.
      if (count == 2 && digits[0] >= '8') return Unsupported("\\x80 and above without braces");
    }
    if (!IsHex(digits) || digits.size() > 8) return Unsupported("this \\x or \\u escape");
    out_ += "\\x{" + std::string(digits) + "}";
    in_.remove_prefix(length);
    return {};
  }

  Status Escape(bool in_class) {
    if (in_.size() < 2) return MakeError("a backslash ends the regex");
    const char c = in_[1];
    switch (c) {
      case 'p':
      case 'P':
        return PropertyEscape(in_class);
      case 'x':
      case 'u':
        return CodePointEscape();
      case 's':
      case 'S':
        Property("White_Space", c == 'S', in_class);
        break;
      case 'd':
      case 'D':
        Property("Nd", c == 'D', in_class);
        break;
      case 'w':
      case 'W':
        if (c == 'W' && in_class) return Unsupported("\\W inside a class");
        if (!in_class) out_ += c == 'w' ? "[" : "[^";
        out_ += kWord;
        if (!in_class) out_ += "]";
        break;
      case 'v':
        out_ += "\\x{0B}";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool same = byte < 0x80 && (std::isalnum(byte) == 0 ||
                                          std::string_view("nrtfae").find(c) != std::string::npos);
        const bool anchor = !in_class && std::string_view("AzZ").find(c) != std::string::npos;
        if (!same && !anchor) {
          return Unsupported(byte < 0x80 ? fmt::format("\\{}", c) : "an escaped character");
        }
        Copy(2);
        return {};
      }
    }
    in_.remove_prefix(2);
    return {};
  }

  // What stands in a class up to its end or to "&&", as an expression for one character: a class of
  // PCRE2's, or a union with the classes that stand in it.
  Result<std::string> ClassOperand(int depth) {
    std::vector<std::string> sets;
    std::string before = std::exchange(out_, "");
    while (!in_.empty() && in_.front() != ']' && in_.substr(0, 2) != "&&") {
      if (in_.front() == '[') {
        std::string members = std::exchange(out_, "");
        HB_RETURN_IF_ERROR(Class(depth + 1));
        sets.push_back(std::exchange(out_, std::move(members)));
      } else if (in_.front() == '\\') {
        HB_RETURN_IF_ERROR(Escape(/*in_class=*/true));
      } else {
        Copy(1);
      }
    }
    if (in_.empty()) return MakeError("a class lacks its closing bracket");
    const std::string members = std::exchange(out_, std::move(before));
    if (!members.empty()) {  // a ^ at its start is no negation
      sets.push_back(fmt::format("[{}{}]", members.front() == '^' ? "\\" : "", members));
    }
    if (sets.empty()) return Unsupported("an empty class");
    return sets.size() == 1 ? sets[0] : fmt::format("(?:{})", fmt::join(sets, "|"));
  }

  // PCRE2 knows neither classes in classes nor "&&", an intersection: that becomes look-ahead.
  Status Class(int depth = 0) {
    constexpr int kDeepest = 8;
    if (in_.substr(0, 2) == "[:") return Unsupported("[: inside a class");
    if (depth > kDeepest) return Unsupported("a class eight classes deep");
    const bool negated = in_.substr(0, 2) == "[^";
    in_.remove_prefix(negated ? 2 : 1);
    HB_ASSIGN_OR_RETURN(std::string one, ClassOperand(depth));
    bool plain = one.front() == '[';
    for (; in_.front() == '&'; plain = false) {
      in_.remove_prefix(2);
      HB_ASSIGN_OR_RETURN(const std::string other, ClassOperand(depth));
      one = fmt::format("(?={}){}", one, other);
    }
    in_.remove_prefix(1);
    if (plain && !negated) {
      out_ += one;
    } else if (plain && one[1] != '^') {
      out_ += "[^" + one.substr(1);
    } else {
      out_ += negated ? fmt::format(R"((?:(?!{})[\x{{0}}-\x{{10FFFF}}]))", one)
                      : fmt::format("(?:{})", one);
    }
    return {};
  }

  Status Group() {
    static constexpr std::string_view kOpeners[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                                    "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (in_.substr(0, 2) == "(*") return Unsupported("(*");
    if (in_.substr(0, 2) != "(?") {
      out_ += "(?:";
      in_.remove_prefix(1);
      return {};
    }
    for (const std::string_view opener : kOpeners) {
      if (in_.substr(0, opener.size()) == opener) {
        Copy(opener.size());
        return {};
      }
    }
    return Unsupported("a group other than (, (?:, (?=, (?!, (?<=, (?<!, (?> and (?i:");
  }

  // {n} {n,} {n,m} {,m}; any other brace is itself.
  Status Interval() {
    size_t at = 1;
    const auto digits = [&] {
      const size_t begin = at;
      while (at < in_.size() && std::isdigit(static_cast<unsigned char>(in_[at])) != 0) ++at;
      return in_.substr(begin, at - begin);
    };
    const std::string_view low = digits();
    const bool comma = at < in_.size() && in_[at] == ',';
    if (comma) ++at;
    const std::string_view high = comma ? digits() : std::string_view();
    if (at == in_.size() || in_[at] != '}' || (low.empty() && high.empty())) {
      out_ += "\\{";
      in_.remove_prefix(1);
      return {};
    }
    const char next = at + 1 < in_.size() ? in_[at + 1] : '\0';
    if (next == '+') return Unsupported("an interval followed by +");
    if (next == '?' && !comma) return Unsupported("{n}?");
    out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, comma ? "," : "", high);
    in_.remove_prefix(at + 1);
    return {};
  }

  std::string_view in_;
  std::string out_;
};

}  // namespace

Result<std::string> TranslateRegex(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace halfbyte
