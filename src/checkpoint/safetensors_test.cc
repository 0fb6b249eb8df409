#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "checkpoint/checkpoint_test_files.h"

namespace halfbyte {
namespace {

using test::MakeTensor;
using test::RawSafetensors;
using test::TempDir;

std::string Problem(const std::string& bytes) {
  const auto header =
      ParseSafetensorsHeader(std::as_bytes(std::span(bytes)), std::ssize(bytes), "x.safetensors");
  return header ? "" : header.error().message;
}

// A header of one F32 tensor "w".
std::string One(const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

void ExpectRefused(const std::string& bytes, std::initializer_list<const char*> words) {
  const std::string problem = Problem(bytes);
  ASSERT_FALSE(problem.empty()) << "was accepted";
  EXPECT_EQ(problem.find("x.safetensors: "), 0u) << problem;
  for (const char* word : words) EXPECT_NE(problem.find(word), std::string::npos) << problem;
}

const std::string k16(16, '\0');

TEST(Safetensors, ReadsTensorsMetadataScalarsAndEmptyTensors) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)"
      R"("e":{"dtype":"BF16","shape":[0,7],"data_offsets":[12,12]},)"
      R"("m":{"dtype":"U8","shape":[3,4],"data_offsets":[0,12]}}   )";
  const std::string bytes = RawSafetensors(header, k16);
  const auto parsed =
      ParseSafetensorsHeader(std::as_bytes(std::span(bytes)), std::ssize(bytes), "x");
  ASSERT_TRUE(parsed) << parsed.error().message;
  ASSERT_EQ(parsed->tensors.size(), 3u);
  EXPECT_EQ(parsed->tensors[0].name, "m");
  EXPECT_EQ(parsed->tensors[0].shape, (Shape{3, 4}));
  EXPECT_EQ(parsed->tensors[0].offset, std::ssize(header) + 8);
  EXPECT_EQ(parsed->tensors[1].bytes, 0);
  EXPECT_TRUE(parsed->tensors[2].shape.empty());
  EXPECT_EQ(parsed->metadata.front().second, "pt");
}

// A header of one tensor "w" of `bytes` bytes.
std::string Typed(const std::string& dtype, const std::string& shape, int bytes) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[0,)" +
         std::to_string(bytes) + "]}}";
}

TEST(Safetensors, KnowsEveryElementTypeBySizeAlsoThoseBelowAByte) {
  for (int i = 0; i < static_cast<int>(DType::kUnknown); ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto bytes = static_cast<int>(DTypeBits(dtype));  // of 8 elements
    const std::string name(DTypeName(dtype));
    const std::string data(static_cast<size_t>(bytes) + 1, 'x');
    EXPECT_EQ(Problem(RawSafetensors(Typed(name, "[2,4]", bytes), data.substr(1))), "") << name;
    ExpectRefused(RawSafetensors(Typed(name, "[2,4]", bytes + 1), data), {"w", "takes", "bytes"});
  }
  EXPECT_EQ(Problem(RawSafetensors(Typed("F4", "[2,3]", 3), "xxx")), "");
  ExpectRefused(RawSafetensors(Typed("F4", "[3]", 2), "xx"), {"w", "ends within a byte"});
  ExpectRefused(RawSafetensors(Typed("F6_E2M3", "[2]", 2), "xx"), {"w", "12 bits"});
}

TEST(Safetensors, BelievesTheOffsetsOfATypeOfALaterVersion) {
  const std::string bytes = RawSafetensors(Typed("F3_E1M1", "[5]", 16), k16);
  const auto parsed =
      ParseSafetensorsHeader(std::as_bytes(std::span(bytes)), std::ssize(bytes), "x");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->tensors[0].dtype, DType::kUnknown);
  EXPECT_EQ(parsed->tensors[0].dtype_name(), "F3_E1M1");
  EXPECT_EQ(parsed->tensors[0].bytes, 16);
  ExpectRefused(RawSafetensors(Typed("F3_E1M1", "[5]", 17), k16), {"truncated"});
}

TEST(Safetensors, ReadsAnEmptyModel) { EXPECT_EQ(Problem(RawSafetensors("{}", "")), ""); }

TEST(Safetensors, RefusesAHeaderLongerThanTheFile) {
  std::string bytes = RawSafetensors(One("[4]", "[0,16]"), k16);
  bytes[2] = 1;  // + 65536
  ExpectRefused(bytes, {"header length", "beyond the file"});
}

TEST(Safetensors, RefusesHeaderLengthZeroAndTwoToThe63) {
  ExpectRefused(std::string(8, '\0'), {"header length 0"});
  std::string huge(8, '\0');
  huge[7] = '\x80';
  ExpectRefused(huge.append("{}"), {"9223372036854775808", "beyond the file"});
}

TEST(Safetensors, RefusesFilesTooShortForALength) {
  ExpectRefused("", {"0 bytes", "too short"});
  ExpectRefused("1234567", {"7 bytes", "too short"});
}

TEST(Safetensors, RefusesHeadersThatAreNoJsonObject) {
  ExpectRefused(RawSafetensors("[1,2]", ""), {"not a JSON object"});
  ExpectRefused(RawSafetensors("{\"w\":", ""), {"not valid JSON"});
  ExpectRefused(RawSafetensors("{} {}", ""), {"not valid JSON"});
  ExpectRefused(RawSafetensors("{\"\xff\":1}", ""), {"not valid JSON"});
  ExpectRefused(RawSafetensors("{\"w\":5}", ""), {"w", "not a JSON object"});
  ExpectRefused(RawSafetensors(std::string("{").append(5000, '['), ""), {"not valid JSON"});
}

TEST(Safetensors, RefusesDataCutByBytesAndNamesBothSizes) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},)"
                             R"("b":{"dtype":"F32","shape":[16],"data_offsets":[64,128]}})";
  const std::string whole = RawSafetensors(header, std::string(128, 'x'));
  EXPECT_EQ(Problem(whole), "");
  for (const size_t cut : {1u, 32u, 128u}) {
    ExpectRefused(whole.substr(0, whole.size() - cut),
                  {"truncated", std::to_string(whole.size()).c_str(),
                   std::to_string(whole.size() - cut).c_str()});
  }
  ExpectRefused(whole + 'y', {"1 too many"});
}

TEST(Safetensors, RefusesSizesThatDoNotFollowFromTheShape) {
  ExpectRefused(RawSafetensors(One("[1000,1000]", "[0,4]"), "1234"), {"w", "4000000 bytes"});
  ExpectRefused(RawSafetensors(One("[4]", "[0,15]"), k16), {"w", "takes 16 bytes"});
}

TEST(Safetensors, RefusesOffsetsOutsideTheFile) {
  ExpectRefused(RawSafetensors(One("[274877906944]", "[0,1099511627776]"), k16), {"truncated"});
  ExpectRefused(RawSafetensors(One("[4]", "[9223372036854775791,9223372036854775807]"), k16),
                {"w", "overflow"});
}

TEST(Safetensors, RefusesNegativeReversedAndFractionalOffsets) {
  ExpectRefused(RawSafetensors(One("[4]", "[-16,0]"), k16), {"w", "negative"});
  ExpectRefused(RawSafetensors(One("[4]", "[8,4]"), k16), {"w", "reversed"});
  ExpectRefused(RawSafetensors(One("[4]", "[0.5,16]"), k16), {"w", "integers"});
  ExpectRefused(RawSafetensors(One("[4]", "[0,16.0]"), k16), {"w", "integers"});
  ExpectRefused(RawSafetensors(One("[4]", "[0,18446744073709551615]"), k16), {"w", "integers"});
  ExpectRefused(RawSafetensors(One("[4]", "[0]"), k16), {"w", "two integers"});
  ExpectRefused(RawSafetensors(One("[4]", "\"0,16\""), k16), {"w", "two integers"});
}

TEST(Safetensors, RefusesShapesThatAreNegativeOverflowOrNoArrays) {
  ExpectRefused(RawSafetensors(One("[-4]", "[0,16]"), k16), {"w", "shape", "negative"});
  ExpectRefused(RawSafetensors(One("[4294967296,4294967296,4294967296]", "[0,16]"), k16),
                {"w", "overflows"});
  ExpectRefused(RawSafetensors(One("4", "[0,16]"), k16), {"w", "not an array"});
  ExpectRefused(RawSafetensors(One("[4.0]", "[0,16]"), k16), {"w", "integers"});
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  const auto two = [](const char* second) {
    return RawSafetensors(R"({"a":{"dtype":"U8","shape":[100],"data_offsets":[0,100]},)"
                          R"("b":{"dtype":"U8","shape":[100],"data_offsets":)" +
                              std::string(second) + "}}",
                          std::string(220, 'x'));
  };
  ExpectRefused(two("[50,150]"), {"b", "overlaps tensor a"});
  ExpectRefused(two("[120,220]"), {"b", "hole of 20 bytes"});
  ExpectRefused(RawSafetensors(One("[2]", "[8,16]"), k16), {"w", "hole of 8 bytes"});
}

TEST(Safetensors, RefusesWrongAndUnknownFields) {
  ExpectRefused(RawSafetensors(R"({"w":{"dtype":7,"shape":[4],"data_offsets":[0,16]}})", k16),
                {"w", "dtype is not a string"});
  ExpectRefused(RawSafetensors(R"({"w":{"shape":[4],"data_offsets":[0,16]}})", k16),
                {"w", "needs dtype"});
  ExpectRefused(
      RawSafetensors(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}})", k16),
      {"w", "unknown field x"});
}

TEST(Safetensors, RefusesNamesFieldsAndMetadataThatAppearTwice) {
  const std::string w = R"("w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  ExpectRefused(RawSafetensors("{" + w + "," + w + "}", k16), {"w", "twice"});
  ExpectRefused(
      RawSafetensors(R"({"w":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
                     k16),
      {"w", "dtype twice"});
  ExpectRefused(RawSafetensors(R"({"__metadata__":{"a":"1","a":"2"}})", ""), {"a", "twice"});
  ExpectRefused(RawSafetensors(R"({"__metadata__":{"a":1}})", ""), {"a", "not a string"});
}

TEST(Safetensors, RefusesAHeaderCutBeforeItsEnd) {
  const std::string bytes = RawSafetensors(One("[4]", "[0,16]"), k16);
  const auto parsed =
      ParseSafetensorsHeader(std::as_bytes(std::span(bytes).first(20)), std::ssize(bytes), "x");
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("cut off"), std::string::npos);
}

RC_GTEST_PROP(SafetensorsProperty, WrittenTensorsComeBackAndAnyOtherLengthIsRefused, ()) {
  std::vector<test::TestTensor> tensors;
  const auto sizes = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 20));
  for (const int size : sizes) {
    tensors.push_back({fmt::format("t{}", tensors.size()),
                       DType::kU8,
                       {size},
                       std::string(static_cast<size_t>(size), 'x')});
  }
  const std::string bytes = test::SafetensorsBytes(tensors);
  RC_ASSERT(Problem(bytes).empty());
  const auto cut = *rc::gen::inRange<size_t>(0, bytes.size());
  RC_ASSERT(!Problem(bytes.substr(0, cut)).empty());
  RC_ASSERT(!Problem(bytes + "x").empty());
}

TEST(SafetensorsFile, ViewsAndDropsPagesOfASparseFileLargerThanMemory) {
  const TempDir dir;
  const std::filesystem::path path = dir.path() / "big.safetensors";
  constexpr int64_t kBytes = int64_t{160'000'000'000};
  const std::string header =
      R"({"w":{"dtype":"U8","shape":[160000000000],"data_offsets":[0,160000000000]}})";
  test::WriteBytes(path, RawSafetensors(header, ""));
  std::filesystem::resize_file(path, static_cast<uintmax_t>(8 + std::ssize(header) + kBytes));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file) << file.error().message;
  const TensorView view = file->View(file->tensors().front());
  EXPECT_EQ(std::ssize(view.bytes), kBytes);
  EXPECT_EQ(view.Load<uint8_t>(kBytes - 1), 0);
  file->DropPages(view.bytes);
  EXPECT_EQ(view.Load<uint8_t>(0), 0);
}

TEST(SafetensorsFile, RefusesDirectoriesAndMissingFiles) {
  const TempDir dir;
  EXPECT_FALSE(SafetensorsFile::Open(dir.path()));
  EXPECT_FALSE(SafetensorsFile::Open(dir.path() / "absent.safetensors"));
}

}  // namespace
}  // namespace halfbyte
