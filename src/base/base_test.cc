#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/thread_pool.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

TEST(ThreadPool, VisitsEveryItemOnceForAnyCountAndGrain) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const auto& visit : visits) EXPECT_EQ(visit.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, ManyShortLoopsInARowSeeEachOthersResults) {
  ThreadPool pool(3);
  std::vector<int64_t> values(300, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.ParallelFor(300, 10, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
    });
  }
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 300 * 2000);
}

TEST(Json, RefusesWhatALenientParserWouldSwallow) {
  for (const char* text : {"", "{", "{\"a\":1,\"a\":2}", "{} x", "[1,]", "\"\xff\"", "{a:1}"}) {
    const auto result = ParseJson(text, "test.json");
    ASSERT_FALSE(result) << text;
    EXPECT_NE(result.error().message.find("test.json"), std::string::npos);
  }
  EXPECT_FALSE(ParseJson(std::string(100000, '['), "deep"));
  EXPECT_TRUE(ParseJson("{\"a\":[1,{\"a\":2}],\"b\":{\"a\":3}}", "ok"));
}

TEST(Json, FieldsAreTypedAndNamed) {
  const Json json = *ParseJson(
      R"({"i":5,"f":5.0,"h":5.5,"s":"5","n":null,"o":{"x":true},"big":18446744073709551615})", "c");
  const JsonObject object = *JsonObject::Of(json, "config.json");
  EXPECT_EQ(object.Int("i")->value(), 5);
  EXPECT_EQ(object.Int("f")->value(), 5);
  EXPECT_FALSE(object.Int("h"));
  EXPECT_FALSE(object.Int("big"));
  EXPECT_EQ(object.Int("s").error().message, "config.json: field s must be an integer, not string");
  EXPECT_FALSE(object.Int("n")->has_value());
  EXPECT_FALSE(object.Int("absent")->has_value());
  const JsonObject inner = **object.Object("o");
  EXPECT_TRUE(inner.Bool("x")->value());
  EXPECT_EQ(inner.String("x").error().message,
            "config.json: field o.x must be a string, not boolean");
}

TEST(File, AtomicWriteReplacesOrLeavesAlone) {
  const fs::path dir = fs::path(testing::TempDir()) / "halfbyte_file_test";
  fs::create_directories(dir);
  const fs::path path = dir / "a.txt";
  ASSERT_TRUE(WriteFileAtomically(path, "one"));
  ASSERT_TRUE(WriteFileAtomically(path, "two"));
  EXPECT_EQ(*ReadTextFile(path), "two");
  EXPECT_FALSE(fs::exists(dir / "a.txt.tmp"));
  EXPECT_FALSE(WriteFileAtomically(dir / "absent" / "a.txt", "x"));
  EXPECT_FALSE(ReadTextFile(path, 2));
  EXPECT_FALSE(ReadTextFile(dir));
  fs::remove_all(dir);
}

TEST(MappedFile, MapsEmptyAndRefusesMissing) {
  const fs::path path = fs::path(testing::TempDir()) / "halfbyte_empty";
  ASSERT_TRUE(WriteFileAtomically(path, ""));
  EXPECT_TRUE(MappedFile::Open(path)->bytes().empty());
  fs::remove(path);
  const auto missing = MappedFile::Open(path);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("halfbyte_empty"), std::string::npos);
}

TEST(MappedFileDeathTest, TruncationMeanwhileEndsWithASentence) {
  const fs::path path = fs::path(testing::TempDir()) / "halfbyte_truncated";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(100000, 'x')));
  EXPECT_EXIT(
      {
        ExitWhenAMappedFileIsTruncated();
        const MappedFile file = *MappedFile::Open(path);
        fs::resize_file(path, 10);
        volatile std::byte last = file.bytes().back();
        (void)last;
      },
      testing::ExitedWithCode(1), "truncated while it was being read");
  fs::remove(path);
}

TEST(Progress, QuantitiesReadWell) {
  EXPECT_EQ(HumanQuantity(159609485896.0, "B"), "159.61 GB");
  EXPECT_EQ(HumanQuantity(999, "B"), "999 B");
}

}  // namespace
}  // namespace halfbyte
