#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_test_files.h"

namespace halfbyte {
namespace {

using test::MakeTensor;
using test::TempDir;
using test::TestTensor;
using test::WriteIndex;
using test::WriteSafetensors;

TestTensor Number(const char* name, float value) {
  return MakeTensor<float>(name, DType::kF32, {1}, {value});
}

float Value(const Checkpoint& checkpoint, const char* name) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  return tensor == nullptr ? -1 : tensor->View().Load<float>(0);
}

void ExpectNotOpened(const std::filesystem::path& directory,
                     std::initializer_list<const char*> words) {
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_FALSE(checkpoint) << "was opened";
  for (const char* word : words) {
    EXPECT_NE(checkpoint.error().message.find(word), std::string::npos)
        << checkpoint.error().message;
  }
}

bool Mentions(const Findings& findings, const std::string& where, const std::string& words) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
    return f.where == where && f.message.find(words) != std::string::npos;
  });
}

TEST(Checkpoint, OpensASingleFileAndSeveralFilesWithoutIndex) {
  const TempDir dir;
  WriteSafetensors(dir.path() / "model.safetensors", {Number("a", 1), Number("b", 2)});
  EXPECT_EQ(Value(*Checkpoint::Open(dir.path()), "b"), 2);
  std::filesystem::rename(dir.path() / "model.safetensors", dir.path() / "one.safetensors");
  WriteSafetensors(dir.path() / "two.safetensors", {Number("c", 3)});
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(Value(*checkpoint, "a"), 1);
  EXPECT_EQ(Value(*checkpoint, "c"), 3);
  EXPECT_EQ(checkpoint->Find("d"), nullptr);
  EXPECT_EQ(checkpoint->tensor_bytes(), 12);
}

TEST(Checkpoint, NamesEveryFileThatGitLfsHasNotFetched) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb"
      "8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const TempDir dir;
  for (const char* name : {"a.safetensors", "tokenizer.json", "generation_config.json"}) {
    test::WriteBytes(dir.path() / name, pointer);
  }
  ExpectNotOpened(dir.path(), {"a.safetensors: is a Git LFS pointer", "git lfs pull"});
  Findings findings;
  CheckCompanionFiles(dir.path(), findings);
  EXPECT_TRUE(Mentions(findings, "tokenizer.json", "git lfs pull"));
  EXPECT_TRUE(Mentions(findings, "generation_config.json", "git lfs pull"));
  test::WriteBytes(dir.path() / "model.safetensors.index.json", pointer);
  ExpectNotOpened(dir.path(), {"model.safetensors.index.json: is a Git LFS pointer"});
}

TEST(Checkpoint, TheIndexOwnsEachNameWhateverTheOrderOfFiles) {
  for (const char* owner : {"a.safetensors", "b.safetensors"}) {
    const TempDir dir;
    WriteSafetensors(dir.path() / "a.safetensors", {Number("w", 1), Number("x", 5)});
    WriteSafetensors(dir.path() / "b.safetensors", {Number("w", 2), Number("y", 6)});
    WriteIndex(dir.path(), {{"w", owner}, {"x", "a.safetensors"}, {"y", "b.safetensors"}});
    Findings findings;
    const auto checkpoint = Checkpoint::OpenWithFindings(dir.path(), findings);
    ASSERT_TRUE(checkpoint);
    EXPECT_FALSE(HasErrors(findings));
    EXPECT_EQ(Value(*checkpoint, "w"), owner[0] == 'a' ? 1 : 2);
    EXPECT_TRUE(Mentions(findings, "w", "stale copy"));
  }
}

TEST(Checkpoint, IgnoresAndReportsAStrayFileBesideTheIndex) {
  const TempDir dir;
  WriteSafetensors(dir.path() / "a.safetensors", {Number("w", 1)});
  WriteSafetensors(dir.path() / "model.safetensors", {Number("w", 9)});
  WriteIndex(dir.path(), {{"w", "a.safetensors"}});
  Findings findings;
  const auto checkpoint = Checkpoint::OpenWithFindings(dir.path(), findings);
  EXPECT_EQ(Value(*checkpoint, "w"), 1);
  EXPECT_TRUE(Mentions(findings, "model.safetensors", "stale file"));
}

TEST(Checkpoint, RefusesANameInTwoFilesWithoutIndex) {
  const TempDir dir;
  WriteSafetensors(dir.path() / "a.safetensors", {Number("w", 1)});
  WriteSafetensors(dir.path() / "b.safetensors", {Number("w", 2)});
  ExpectNotOpened(dir.path(), {"w:", "a.safetensors", "b.safetensors", "no index"});
}

TEST(Checkpoint, ListsAllMissingShardsAtOnce) {
  const TempDir dir;
  WriteSafetensors(dir.path() / "b.safetensors", {Number("b", 1)});
  WriteIndex(dir.path(), {{"a", "a.safetensors"}, {"b", "b.safetensors"}, {"c", "c.safetensors"}});
  ExpectNotOpened(dir.path(), {"a.safetensors: missing shard", "c.safetensors: missing shard"});
}

TEST(Checkpoint, RefusesAShardWithoutTheTensorTheIndexPromises) {
  const TempDir dir;
  WriteSafetensors(dir.path() / "a.safetensors", {Number("a", 1)});
  WriteIndex(dir.path(), {{"a", "a.safetensors"}, {"b", "a.safetensors"}});
  ExpectNotOpened(dir.path(), {"b: missing", "a.safetensors"});
}

TEST(Checkpoint, RefusesIndexPathsOutsideTheDirectory) {
  const TempDir dir;
  const std::filesystem::path inside = dir.path() / "model";
  WriteSafetensors(dir.path() / "evil.safetensors", {Number("a", 1)});
  for (const std::string& name :
       {std::string("../evil.safetensors"), (dir.path() / "evil.safetensors").string(),
        std::string("x/../../evil.safetensors"), std::string()}) {
    std::filesystem::create_directories(inside);
    WriteIndex(inside, {{"a", name}});
    ExpectNotOpened(inside, {"outside the model's directory"});
  }
}

TEST(Checkpoint, RefusesATruncatedShardByName) {
  const TempDir dir;
  std::string bytes = test::SafetensorsBytes({Number("a", 1), Number("b", 2)});
  bytes.pop_back();
  test::WriteBytes(dir.path() / "a.safetensors", bytes);
  WriteIndex(dir.path(), {{"a", "a.safetensors"}, {"b", "a.safetensors"}});
  ExpectNotOpened(dir.path(), {"a.safetensors: truncated"});
}

TEST(Checkpoint, RefusesBrokenIndexes) {
  const TempDir dir;
  WriteSafetensors(dir.path() / "a.safetensors", {Number("a", 1)});
  const std::filesystem::path index = dir.path() / "model.safetensors.index.json";
  test::WriteBytes(index, "{\"weight_map\":");
  ExpectNotOpened(dir.path(), {"index.json", "not valid JSON"});
  test::WriteBytes(index, "{}");
  ExpectNotOpened(dir.path(), {"weight_map"});
  test::WriteBytes(index, R"({"weight_map":{"a":3}})");
  ExpectNotOpened(dir.path(), {"a", "not a file name"});
  test::WriteBytes(index, R"({"weight_map":{"a":"a.safetensors","a":"b.safetensors"}})");
  ExpectNotOpened(dir.path(), {"tensor a twice"});
  test::WriteBytes(index, R"({"weight_map":{}})");
  ExpectNotOpened(dir.path(), {"empty"});
}

TEST(Checkpoint, RefusesDirectoriesWithoutAModel) {
  const TempDir dir;
  ExpectNotOpened(dir.path(), {"no *.safetensors file"});
  ExpectNotOpened(dir.path() / "absent", {"not a directory"});
}

}  // namespace
}  // namespace halfbyte
