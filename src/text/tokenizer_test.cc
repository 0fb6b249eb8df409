#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "text/text_test_tokenizer.h"
#include "text/utf8_stream.h"

namespace halfbyte {
namespace {

const std::filesystem::path kRoot = HALFBYTE_SOURCE_DIR;
using Ids = std::vector<int32_t>;

Ids Encode(std::string_view text) { return *TestTokenizer().Encode(text, ControlTokens::kAsText); }

// The bytes of each token, to see where a text was cut.
std::vector<std::string> Pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  const auto ids = tokenizer.Encode(text, ControlTokens::kAsText);
  HB_CHECK(ids.has_value(), "{}", ids.error().message);
  for (const int32_t id : *ids) pieces.emplace_back(*tokenizer.TokenBytes(id));
  return pieces;
}

TEST(Tokenizer, AgreesWithTheReferenceLibraryOnTheGoldenCases) {
  const auto cases = ReadJsonFile(kRoot / "tests/data/tokenizer/cases.json");
  ASSERT_TRUE(cases) << cases.error().message;
  ASSERT_EQ(cases->size(), 31u);
  for (const Json& test : *cases) {
    const auto text = test["text"].get<std::string>();
    const auto ids = test["ids"].get<Ids>();
    EXPECT_EQ(*TestTokenizer().Encode(text, ControlTokens::kRecognized), ids) << text;
    EXPECT_EQ(ToValidUtf8(*TestTokenizer().Decode(ids, false)), test["decoded"].get<std::string>());
  }
}

TEST(Tokenizer, CutsNumbersInThreesWhateverTheirScript) {  // TOK-02
  const auto ids_of = [](std::initializer_list<const char*> parts) {
    Ids ids;
    for (const char* part : parts) {
      const Ids more = Encode(part);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
  };
  EXPECT_EQ(Encode("12345"), ids_of({"123", "45"}));
  EXPECT_EQ(Encode("1234567a"), ids_of({"123", "456", "7", "a"}));
  EXPECT_EQ(Encode("\u0661\u0662\u0663\u0664"), ids_of({"\u0661\u0662\u0663", "\u0664"}));
}

TEST(Tokenizer, GivesBackEveryTextByteForByte) {
  for (const std::string text :
       {"", " ", "hello world", "  two  spaces  ", "\t\ttabs", "a\r\nb\n\r\n\nc", "F\u00fchrer",
        "\u4f60\u597d\u3042\u30ab", "\U0001F469\u200d\U0001F467", "\u180e\u0085\u2028", "\xff",
        "a\xc3", "\xf0\x9f\x98", "ok \xed\xa0\x80 ok",
        "\xc0\x80"
        "123\xfe"
        "abc"}) {
    EXPECT_EQ(*TestTokenizer().Decode(Encode(text), false), text);
  }
  const std::string nul("a\0b", 3);
  EXPECT_EQ(*TestTokenizer().Decode(Encode(nul), false), nul);
}

RC_GTEST_PROP(Tokenizer, AnyBytesComeBack, (const std::vector<uint8_t>& bytes)) {
  const std::string text(bytes.begin(), bytes.end());
  for (const auto control : {ControlTokens::kAsText, ControlTokens::kRecognized}) {
    RC_ASSERT(*TestTokenizer().Decode(*TestTokenizer().Encode(text, control), false) == text);
  }
}

TEST(Tokenizer, GivesOneTokenPerInvalidByte) {
  Ids expected = Encode("caf");
  for (const char* byte : {"\xe9", "\xff"}) {
    const Ids one = Encode(byte);
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(*TestTokenizer().TokenBytes(one[0]), byte);
    expected.push_back(one[0]);
  }
  const Ids after = Encode(" au lait");
  expected.insert(expected.end(), after.begin(), after.end());
  EXPECT_EQ(Encode("caf\xe9\xff au lait"), expected);
}

TEST(Tokenizer, RecognisesControlTokensOnlyWhereAllowed) {  // TOK-03
  for (const char* spelling : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                               "<｜Assistant｜>", "<think>", "</think>"}) {
    const int32_t control = *TestTokenizer().IdOf(spelling);
    const std::string text = std::string("a ") + spelling + " b " + spelling;
    for (const int32_t id : Encode(text)) EXPECT_FALSE(TestTokenizer().IsSpecial(id));
    EXPECT_EQ(*TestTokenizer().Decode(Encode(text), true), text);
    const Ids all = *TestTokenizer().Encode(text, ControlTokens::kRecognized);
    EXPECT_EQ(std::count(all.begin(), all.end(), control), 2);
    EXPECT_EQ(*TestTokenizer().Decode(all, true), "a  b ");
    const ByteRange first[] = {{2, 2 + std::string_view(spelling).size()}};
    const Ids one = *TestTokenizer().Encode(text, first);
    EXPECT_EQ(std::count(one.begin(), one.end(), control), 1);
    EXPECT_EQ(one[std::ranges::find(one, control) - one.begin()], control);
    EXPECT_EQ(*TestTokenizer().Decode(one, true), "a  b " + std::string(spelling));
  }
}

TEST(Tokenizer, WantsTheWholeControlTokenInsideARange) {
  const std::string text = "x<think>y";  // token at 1..8
  const int32_t think = *TestTokenizer().IdOf("<think>");
  const auto finds = [&](std::vector<ByteRange> ours) {
    const Ids ids = *TestTokenizer().Encode(text, ours);
    return std::ranges::find(ids, think) != ids.end();
  };
  EXPECT_TRUE(finds({{1, 8}}));
  EXPECT_TRUE(finds({{0, 9}}));
  EXPECT_TRUE(finds({{1, 4}, {4, 8}}));  // adjacent ranges are one
  EXPECT_FALSE(finds({{2, 9}}));
  EXPECT_FALSE(finds({{0, 7}}));
  EXPECT_FALSE(finds({{0, 4}, {5, 9}}));
  EXPECT_FALSE(finds({}));
}

TEST(Tokenizer, CutsTheSameWhereverTheRangesEnd) {
  const std::string text = "Hello  wonderful world 12345";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const ByteRange ours[] = {{0, cut}};
    EXPECT_EQ(*TestTokenizer().Encode(text, ours), Encode(text));
  }
}

TEST(Tokenizer, RefusesIdsOutsideItsVocabulary) {
  for (const int32_t id : {-1, 4096, INT32_MAX, INT32_MIN}) {
    const auto result = TestTokenizer().Decode(Ids{5, id}, false);
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find(std::to_string(id)), std::string::npos);
    EXPECT_FALSE(TestTokenizer().IsSpecial(id));
  }
  EXPECT_EQ(TestTokenizer().vocab_size(), 4096);
  const auto missing = TestTokenizer().IdOf("<｜Nobody｜>");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("<｜Nobody｜>"), std::string::npos);
}

TEST(Tokenizer, ServesManyThreadsAtOnce) {
  const std::string text = "The quick brown fox jumps over the lazy dog 1234 \u4f60\u597d.";
  const Ids expected = Encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += Encode(text) != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

// From here on: a small tokenizer whose file the tests change.

Json SmallFile() { return *ReadJsonFile(kRoot / "tests/data/fuzz/tokenizer/v4.json"); }

Tokenizer Small(const Json& file) {
  auto tokenizer = Tokenizer::FromJson(file.dump(), "t.json");
  HB_CHECK(tokenizer.has_value(), "{}", tokenizer.error().message);
  return *std::move(tokenizer);
}

// A file with one Split of `pattern`, "Regex" or "String".
Json WithSplit(const char* kind, const std::string& pattern) {
  Json file = SmallFile();
  auto& steps = file["pre_tokenizer"]["pretokenizers"];
  steps = Json::array({{{"type", "Split"},
                        {"pattern", {{kind, pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}},
                       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}});
  file["model"]["ignore_merges"] = true;
  return file;
}

TEST(TokenizerFile, RefusesByNameWhatItDoesNotImplement) {
  const struct {
    const char* pointer;
    const char* value;
    const char* named;
  } cases[] = {
      {"/normalizer", R"({"type":"NFD"})", "normalizer: type \"NFD\""},
      {"/normalizer", R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]})",
       "normalizer.normalizers[1]: type \"Lowercase\""},
      {"/normalizer", R"({"type":"Sequence"})", "normalizer.normalizers is missing"},
      {"/normalizer", R"("NFC")", "normalizer must be an object"},
      {"/truncation", "5", "truncation must be an object"},
      {"/padding", R"("x")", "padding must be an object"},
      {"/post_processor", R"({"type":"RobertaProcessing"})", "RobertaProcessing"},
      {"/post_processor", R"({"type":"TemplateProcessing"})", "post_processor.single is missing"},
      {"/post_processor", R"({"type":"TemplateProcessing","single":[]})", "post_processor.single"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"B","type_id":0}}]})",
       "post_processor.single[0].Sequence is not known"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},
           {"Sequence":{"id":"A"}}],"special_tokens":{}})",
       "post_processor.single[0].SpecialToken.id is \"<s>\""},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},
           {"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[9000]}}})",
       "post_processor adds token id 9000"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},
           {"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[-1]}}})",
       "gives token \"<s>\" an id"},
      {"/post_processor",
       R"({"type":"Sequence","processors":[
           {"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]},
           {"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]}]})",
       "post_processor.processors[1]"},
      {"/decoder", R"({"type":"WordPiece"})", "WordPiece"},
      {"/decoder", R"({"type":"Sequence","decoders":[{"type":"ByteLevel"},{"type":"Strip"}]})",
       "decoder.decoders[1]: type \"Strip\""},
      {"/decoder", R"({"type":"ByteLevel","new":1})", "decoder.new"},
      {"/decoder", R"({"type":"Sequence","decoders":[]})", "decoder"},
      {"/decoder", "null", "decoder"},
      {"/pre_tokenizer", "null", "pre_tokenizer"},
      {"/pre_tokenizer", R"({"type":"Whitespace"})", "Whitespace"},
      {"/pre_tokenizer/pretokenizers/0/behavior", R"("Removed")", "Removed"},
      {"/pre_tokenizer/pretokenizers/0/invert", R"("yes")", "invert"},
      {"/pre_tokenizer/pretokenizers/0/type", R"("Punctuation")", "Punctuation"},
      {"/pre_tokenizer/pretokenizers/0", R"({"type":"ByteLevel","use_regex":false})",
       "pre_tokenizer.pretokenizers[0]: type \"ByteLevel\""},
      {"/pre_tokenizer/pretokenizers/3",
       R"({"type":"Split","pattern":{"String":"a"},"behavior":"Isolated"})",
       "must end with ByteLevel"},
      {"/pre_tokenizer/pretokenizers/3/add_prefix_space", "true", "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers/0/pattern", R"({"String":""})", "pattern"},
      {"/pre_tokenizer/pretokenizers/0/pattern", R"({"Regex":"a","String":"b"})", "pattern"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(")", "regex 1 does not compile"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\bword")", "\\b"},
      {"/model/type", R"("Unigram")", "Unigram"},
      {"/model/dropout", "0.1", "dropout"},
      {"/model/byte_fallback", "5", "byte_fallback"},
      {"/model/continuing_subword_prefix", R"("##")", "##"},
      {"/model/end_of_word_suffix", R"("</w>")", "</w>"},
      {"/model/vocab", "null", "vocab"},
      {"/model/merges", "null", "merges"},
      {"/model/new_option", "1", "model.new_option"},
      {"/surprise", "1", "surprise"},
      {"/added_tokens/0/lstrip", "true", "lstrip"},
      {"/added_tokens/0/rstrip", "true", "rstrip"},
      {"/added_tokens/0/single_word", "true", "single_word"},
  };
  for (const auto& test : cases) {
    Json file = SmallFile();
    file[Json::json_pointer(test.pointer)] = *ParseJson(test.value, "value");
    const auto result = Tokenizer::FromJson(file.dump(), "t.json");
    ASSERT_FALSE(result) << test.pointer << " = " << test.value;
    EXPECT_EQ(result.error().message.rfind("t.json: ", 0), 0u) << result.error().message;
    EXPECT_NE(result.error().message.find(test.named), std::string::npos)
        << test.pointer << ": " << result.error().message;
  }
}

TEST(TokenizerFile, RefusesVocabulariesThatContradictThemselves) {
  const struct {
    const char* pointer;
    const char* value;
    const char* named;
  } cases[] = {
      {"/model/vocab/!", "1", "share id 1"},
      {"/model/vocab/!", "-1", "\"!\""},
      {"/model/vocab/!", "1.5", "\"!\""},
      {"/model/vocab/!", "\"0\"", "\"!\""},
      {"/model/vocab/!", "99999999999", "\"!\""},
      {"/model/vocab/!", "1048576", "\"!\""},
      {"/model/vocab/!", "265", "share id 265"},
      {"/added_tokens/0/id", "3", "id 3"},
      {"/added_tokens/0/id", "267", "id 267"},  // leaves a hole
      {"/added_tokens/0/id", "-5", "-5"},
      {"/added_tokens/0/id", "4294967296", "4294967296"},
      {"/added_tokens/0/content", "\"\"", "content"},
      {"/added_tokens/0/content", "\"</think>\"", "</think>"},
      {"/added_tokens/0/content", "5", "content"},
      {"/model/merges/2", "\"a\"", "merges[2]"},
      {"/model/merges/2", "\"a b c\"", "merges[2]"},
      {"/model/merges/2", "[\"a\"]", "merges[2]"},
      {"/model/merges/2", "7", "merges[2]"},
      {"/model/merges/2", "[\"a\",\"zz\"]", "\"zz\""},
      {"/model/merges/2", "[\"x\",\"y\"]", "\"xy\""},
      {"/model/merges/2", "[\"l\",\"l\"]", "join \"l\" and \"l\""},  // as merges[0]
  };
  for (const auto& test : cases) {
    Json file = SmallFile();
    file[Json::json_pointer(test.pointer)] = *ParseJson(test.value, "value");
    const auto result = Tokenizer::FromJson(file.dump(), "t.json");
    ASSERT_FALSE(result) << test.pointer << " = " << test.value;
    EXPECT_NE(result.error().message.find(test.named), std::string::npos)
        << test.pointer << " = " << test.value << ": " << result.error().message;
  }
  Json file = SmallFile();
  const Json space = file["model"]["vocab"]["\u0120"];
  file["model"]["vocab"].erase("\u0120");
  file["model"]["vocab"]["other"] = space;
  EXPECT_NE(Tokenizer::FromJson(file.dump(), "t").error().message.find("byte 0x20"),
            std::string::npos);
}

TEST(TokenizerFile, NoMergeMayBuildASpecialToken) {  // TOK-03, through the back door
  Json file = SmallFile();
  const int32_t id = file["added_tokens"][0]["id"];
  file["added_tokens"][0]["content"] = "xy";
  file["model"]["merges"].push_back({"x", "y"});
  const Tokenizer tokenizer = Small(file);
  EXPECT_EQ(Pieces(tokenizer, "xy"), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(*tokenizer.Encode("xy", ControlTokens::kRecognized), Ids{id});
  // Spelled as the bytes of another text: nobody would find it first.
  file["added_tokens"][0]["content"] = "\u0120y";
  file["model"]["merges"].back() = {"\u0120", "y"};
  const auto result = Tokenizer::FromJson(file.dump(), "t.json");
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("special token \"\u0120y\""), std::string::npos);
  file["added_tokens"][0]["content"] = "x";  // stands for a byte as well
  file["model"]["merges"].erase(file["model"]["merges"].size() - 1);
  EXPECT_FALSE(Tokenizer::FromJson(file.dump(), "t.json"));
}

TEST(TokenizerFile, RefusesBytesThatAreNoTokenizer) {
  const std::string good = SmallFile().dump();
  EXPECT_FALSE(Tokenizer::FromJson("", "t"));
  EXPECT_FALSE(Tokenizer::FromJson("null", "t"));
  EXPECT_FALSE(Tokenizer::FromJson("[]", "t"));
  EXPECT_FALSE(Tokenizer::FromJson(good + "x", "t"));
  EXPECT_FALSE(Tokenizer::FromJson("\xff" + good, "t"));
  EXPECT_FALSE(Tokenizer::FromJson(std::string(1'000'000, '['), "t"));
  std::string nested = "{\"normalizer\":";
  for (int i = 0; i < 100; ++i) nested += "{\"normalizer\":";
  EXPECT_FALSE(Tokenizer::FromJson(nested + "1" + std::string(101, '}'), "t"));
  std::string broken = good;
  broken[broken.find("<think>") + 1] = '\xff';
  EXPECT_FALSE(Tokenizer::FromJson(broken, "t"));
  EXPECT_FALSE(Tokenizer::FromJson("{\"version\":\"1\",\"version\":\"1\"," + good.substr(1), "t"));
  for (size_t size = 0; size < good.size(); size += 97) {
    EXPECT_FALSE(Tokenizer::FromJson(good.substr(0, size), "t")) << size;
  }
  const auto missing = Tokenizer::Load("/nonexistent/tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/nonexistent/tokenizer.json"), std::string::npos);
}

// variants.json: changes of the small file, and what the tokenizers package makes of texts then.
// tests/outside/test_tokenizers.py holds the ids against the package.
TEST(TokenizerFile, AgreesWithTheReferenceLibraryOnEveryVariantOfASection) {
  const auto variants = ReadJsonFile(kRoot / "tests/data/tokenizer/variants.json");
  ASSERT_TRUE(variants) << variants.error().message;
  ASSERT_GE(variants->size(), 25u);
  for (const Json& variant : *variants) {
    Json file = SmallFile();
    const Json changes = variant.value("set", Json::object());
    for (const auto& [pointer, value] : changes.items()) {
      file[Json::json_pointer(pointer)] = value;
    }
    const Json removed = variant.value("remove", Json::array());
    for (const Json& pointer : removed) {
      const Json::json_pointer place(pointer.get<std::string>());
      file[place.parent_pointer()].erase(place.back());
    }
    const auto tokenizer = Tokenizer::FromJson(file.dump(), "t.json");
    ASSERT_TRUE(tokenizer) << variant["about"] << ": " << tokenizer.error().message;
    for (const Json& test : variant["cases"]) {
      const auto text = test["text"].get<std::string>();
      EXPECT_EQ(*tokenizer->EncodePrompt(text, /*add_special_tokens=*/false),
                test["ids"].get<Ids>())
          << variant["about"] << ": " << text;
      EXPECT_EQ(*tokenizer->EncodePrompt(text, /*add_special_tokens=*/true),
                test.value("with_special_tokens", test["ids"].get<Ids>()))
          << variant["about"] << ": " << text;
    }
  }
}

TEST(TokenizerFile, TruncationAndPaddingChangeNothingAsInTransformers) {
  Json file = SmallFile();
  const std::string text = "Hello ababaa 1234 Hello";
  const Ids whole = *Small(file).EncodePrompt(text, true);
  file["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}};
  file["padding"] = {{"strategy", {{"Fixed", 40}}}, {"pad_id", 0}};
  EXPECT_EQ(*Small(file).EncodePrompt(text, true), whole);
}

TEST(TokenizerFile, AnIdWithoutTokenStandsForNoBytes) {
  Json file = SmallFile();
  file["added_tokens"] = Json::array();
  file["model"]["vocab"]["end"] = 300;
  const Tokenizer tokenizer = Small(file);
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_EQ(*tokenizer.Decode(Ids{97, 280, 300}, false), "aend");
}

// DeepSeek's first vocabularies lack the bytes that UTF-8 never has.
TEST(TokenizerFile, BytesOfNoTextMayBeMissingUntilTheyAreNeeded) {
  Json file = SmallFile();
  const int32_t id = file["model"]["vocab"]["\u00c0"];
  file["model"]["vocab"].erase("\u00c0");
  file["model"]["vocab"]["other"] = id;
  const Tokenizer tokenizer = Small(file);
  EXPECT_TRUE(tokenizer.Encode("\u00c0 caf\xe9 \xff", ControlTokens::kAsText));
  const auto refused = tokenizer.Encode("a\xc0", ControlTokens::kAsText);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("0xc0"), std::string::npos) << refused.error().message;
}

TEST(TokenizerFile, FindsNormalizedAddedTokensAfterTheOthers) {
  Json file = SmallFile();
  file["added_tokens"][0]["content"] = "ab";
  file["added_tokens"][1]["content"] = "bc";
  file["added_tokens"][0]["normalized"] = true;
  const int32_t ab = file["added_tokens"][0]["id"], bc = file["added_tokens"][1]["id"];
  file["model"]["merges"] = Json::array();
  file["model"]["vocab"].erase("ab");
  file["model"]["vocab"]["unused"] = 261;  // keeps the ids without holes
  const Tokenizer tokenizer = Small(file);
  const int32_t a = file["model"]["vocab"]["a"];
  EXPECT_EQ(*tokenizer.Encode("abc", ControlTokens::kRecognized), (Ids{a, bc}));
  EXPECT_EQ(*tokenizer.Encode("ababc", ControlTokens::kRecognized), (Ids{ab, a, bc}));
}

TEST(TokenizerFile, TakesTheLongestAddedToken) {
  Json file = SmallFile();
  file["added_tokens"][0]["content"] = "<a>";
  file["added_tokens"][1]["content"] = "<a><b>";
  const Tokenizer tokenizer = Small(file);
  const int32_t one = file["added_tokens"][0]["id"], two = file["added_tokens"][1]["id"];
  EXPECT_EQ(*tokenizer.Encode("<a><b><a>", ControlTokens::kRecognized), (Ids{two, one}));
  const ByteRange ours[] = {{0, 5}};  // the longer one does not fit
  EXPECT_EQ(tokenizer.Encode("<a><b>", ours)->front(), one);
}

TEST(PreTokenizer, ARunawayRegexIsAnErrorNotAHang) {
  const Tokenizer tokenizer = Small(WithSplit("Regex", "(a+)+$|(a|aa)+!"));
  const auto result = tokenizer.Encode(std::string(5000, 'a') + "b", ControlTokens::kAsText);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("t.json: a pre-tokenizer regex"), std::string::npos);
  EXPECT_TRUE(tokenizer.Encode("harmless", ControlTokens::kAsText));  // and the next call works
}

TEST(PreTokenizer, EmptyMatchesCutAndEnd) {
  // A word that is one token shows a cut by falling apart.
  EXPECT_EQ(Pieces(Small(WithSplit("Regex", "x*")), "Hell"),
            (std::vector<std::string>{"H", "e", "l", "l"}));
  EXPECT_EQ(Pieces(Small(WithSplit("Regex", "(?=ll)")), "Hell"),
            (std::vector<std::string>{"He", "ll"}));
  EXPECT_EQ(Pieces(Small(WithSplit("Regex", "$")), "Hell"), (std::vector<std::string>{"Hell"}));
  EXPECT_EQ(Pieces(Small(WithSplit("Regex", "x*")), "\u4f60").size(), 3u);
}

TEST(PreTokenizer, APatternThatMustCoverTheTextLosesNothingOfIt) {
  Json file = WithSplit("Regex", "[a-z]+");
  file["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  file["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
  const Tokenizer tokenizer = Small(file);
  EXPECT_TRUE(tokenizer.Encode("hell", ControlTokens::kAsText));
  for (const char* text : {"Hell", "hell!", "a b"}) {
    const auto refused = tokenizer.Encode(text, ControlTokens::kAsText);
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(refused.error().message.find("does not match"), std::string::npos);
  }
}

// A range that ends within a composed character does not reach into it.
TEST(Tokenizer, NormalizedControlTokensKeepToTheirRanges) {
  Json file = SmallFile();
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"][0]["content"] = "\u00e9!";
  file["added_tokens"][0]["normalized"] = true;
  const Tokenizer tokenizer = Small(file);
  const std::string text = "xe\u0301!";  // bytes: x 0, e 1, the accent 2..4, ! 4
  const int32_t id = file["added_tokens"][0]["id"];
  const auto finds = [&](std::vector<ByteRange> ours) {
    const Ids ids = *tokenizer.Encode(text, ours);
    return std::ranges::find(ids, id) != ids.end();
  };
  EXPECT_TRUE(finds({{0, 5}}));
  EXPECT_TRUE(finds({{1, 5}}));
  EXPECT_FALSE(finds({{2, 5}}));
  EXPECT_FALSE(finds({{0, 4}}));
  EXPECT_FALSE(finds({{0, 2}, {4, 5}}));
}

TEST(PreTokenizer, LiteralsAreNoRegexes) {
  EXPECT_EQ(Pieces(Small(WithSplit("String", "l")), "Hell"),
            (std::vector<std::string>{"He", "l", "l"}));
  EXPECT_EQ(Pieces(Small(WithSplit("String", ".")), "Hell"), (std::vector<std::string>{"Hell"}));
}

TEST(EncodeLimits, GiveTheSameIdsOrNone) {
  const Tokenizer& tokenizer = TestTokenizer();
  std::string text =
      "The number of cats is 12345.\n\n" + std::string(300, ' ') + "\xff\xfe caf\xc3\xa9";
  for (int i = 0; i < 4; ++i) text += text;
  const ByteRange all = {0, text.size()};
  const auto ids = *tokenizer.Encode(text, {&all, 1});
  for (const int64_t most : {int64_t{0}, int64_t{1}, std::ssize(ids) - 1, std::ssize(ids)}) {
    const auto within = tokenizer.Encode(text, {&all, 1}, {.most_ids = most});
    ASSERT_TRUE(within);
    EXPECT_EQ(within->has_value(), most == std::ssize(ids)) << most;
    if (*within) {
      EXPECT_EQ(**within, ids);
    }
  }
}

// Otherwise this takes half a minute and the memory of each symbol many times over.
TEST(EncodeLimits, RefuseATextByItsBytesAndStopInALongPretoken) {
  const Tokenizer& tokenizer = TestTokenizer();
  const std::string text(20'000'000, ' ');
  const auto within = tokenizer.Encode(text, {}, {.most_ids = 4096});
  ASSERT_TRUE(within);
  EXPECT_FALSE(*within);
  std::stop_source source;
  source.request_stop();
  const auto stopped = tokenizer.Encode(text, {}, {.stop = source.get_token()});
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().message, "the encoding was told to stop");
}

}  // namespace
}  // namespace halfbyte
