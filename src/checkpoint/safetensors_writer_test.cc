#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "base/json.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

class SafetensorsWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "halfbyte_writer_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> FilesLeft() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  fs::path folder_;
};

struct ReadBack {
  Json header;
  std::string file;
  int64_t data_start = 0;

  explicit ReadBack(const fs::path& path) : file(*ReadTextFile(path)) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    data_start = 8 + static_cast<int64_t>(length);
    header = *ParseJson(std::string_view(file).substr(8, length), path.string());
  }
  int64_t Begin(const std::string& name) const {
    return data_start + header[name]["data_offsets"][0].get<int64_t>();
  }
  std::string Data(const std::string& name) const {
    const auto& offsets = header[name]["data_offsets"];
    return file.substr(static_cast<size_t>(Begin(name)),
                       offsets[1].get<size_t>() - offsets[0].get<size_t>());
  }
};

TEST_F(SafetensorsWriterTest, WritesTensorsInAnyOrderAndInPieces) {
  const fs::path path = folder_ / "a.safetensors";
  auto writer = *SafetensorsWriter::Create(
      path,
      {{"scalar", DType::kF32, {}}, {"big", DType::kU8, {2, 64}}, {"odd", DType::kBf16, {3}}});
  const std::string big(128, 'b');
  ASSERT_TRUE(writer->Write(2, 0, Bytes("oddodd")));
  ASSERT_TRUE(writer->Write(1, 64, Bytes(big).subspan(64)));
  ASSERT_TRUE(writer->Write(0, 0, Bytes("SCAL")));
  ASSERT_TRUE(writer->Write(1, 0, Bytes(big).first(64)));
  EXPECT_FALSE(fs::exists(path)) << "before Finish the final name must not exist";
  ASSERT_TRUE(writer->Finish());

  const ReadBack read(path);
  EXPECT_EQ(read.Data("scalar"), "SCAL");
  EXPECT_EQ(read.Data("big"), big);
  EXPECT_EQ(read.Data("odd"), "oddodd");
  EXPECT_EQ(read.header["odd"]["dtype"], "BF16");
  EXPECT_EQ(read.header["scalar"]["shape"], Json::array());
  EXPECT_EQ(read.header["__metadata__"]["format"], "pt");
  EXPECT_EQ(writer->file_bytes(), static_cast<int64_t>(read.file.size()));
  EXPECT_EQ(FilesLeft(), std::vector<std::string>{"a.safetensors"});
}

TEST_F(SafetensorsWriterTest, StartsLargeTensorsAtMultiplesOf64AndLeavesNoHoles) {
  const fs::path path = folder_ / "a.safetensors";
  const std::vector<TensorSpec> tensors = {
      {"s1", DType::kF32, {}},    {"m1", DType::kU8, {64, 3}}, {"u8", DType::kU8, {5}},
      {"m2", DType::kBf16, {32}}, {"i64", DType::kI64, {3}},   {"none", DType::kF32, {0, 4}},
      {"bf16", DType::kBf16, {3}}};
  auto writer = *SafetensorsWriter::Create(path, tensors);
  int64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_TRUE(writer->Write(
        i, 0, Bytes(std::string(static_cast<size_t>(tensors[i].bytes()), char('0' + i)))));
    total += tensors[i].bytes();
  }
  ASSERT_TRUE(writer->Finish());
  const ReadBack read(path);
  EXPECT_EQ(read.data_start % 64, 0);
  EXPECT_EQ(read.data_start + total, static_cast<int64_t>(read.file.size()));
  EXPECT_EQ(SafetensorsFileBytes(tensors), static_cast<int64_t>(read.file.size()));
  for (const char* name : {"m1", "m2"}) EXPECT_EQ(read.Begin(name) % 64, 0) << name;
  for (const TensorSpec& tensor : tensors) {
    EXPECT_EQ(read.Begin(tensor.name) % DTypeSize(tensor.dtype), 0) << tensor.name;
  }
  int64_t end = 0;  // header order is data order, one tensor right after the other
  for (const auto& [name, entry] : read.header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(entry["data_offsets"][0].get<int64_t>(), end) << name;
    end = entry["data_offsets"][1].get<int64_t>();
  }
}

TEST_F(SafetensorsWriterTest, LeavesNothingBehindWhenItIsGivenUp) {
  std::ofstream(folder_ / "a.safetensors") << "what was there before";
  {
    auto writer = *SafetensorsWriter::Create(folder_ / "a.safetensors", {{"t", DType::kU8, {100}}});
    ASSERT_TRUE(writer->Write(0, 0, Bytes(std::string(50, 'x'))));
    EXPECT_EQ(FilesLeft(), std::vector<std::string>{"a.safetensors"});
  }
  EXPECT_EQ(FilesLeft(), std::vector<std::string>{"a.safetensors"});
  EXPECT_EQ(*ReadTextFile(folder_ / "a.safetensors"), "what was there before");
}

TEST_F(SafetensorsWriterTest, SaysThatItCannotCreateTheFile) {
  const auto missing =
      SafetensorsWriter::Create(folder_ / "no" / "a.safetensors", {{"t", DType::kU8, {1}}});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("cannot create: No such file"), std::string::npos)
      << missing.error().message;
}

TEST_F(SafetensorsWriterTest, ReplacesNothingButRegularFiles) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {pipe, folder_ / "", fs::path()}) {
    const auto writer = SafetensorsWriter::Create(path, {{"a", DType::kU8, {4}}});
    ASSERT_FALSE(writer) << path;
  }
  EXPECT_EQ(FilesLeft(), std::vector<std::string>{"pipe"});
}

TEST_F(SafetensorsWriterTest, SaysBeforeTheWorkThatTheDiskIsTooSmall) {
  if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "cannot mount a small file system here";
  }
  const auto writer =
      SafetensorsWriter::Create(folder_ / "a.safetensors", {{"t", DType::kU8, {1 << 20}}});
  const std::vector<std::string> left = FilesLeft();
  ::umount2(folder_.c_str(), MNT_DETACH);
  ASSERT_FALSE(writer);
  EXPECT_NE(writer.error().message.find("no room for 1048704 bytes"), std::string::npos)
      << writer.error().message;
  EXPECT_TRUE(left.empty());
}

TEST_F(SafetensorsWriterTest, SaysThatTheFileSizeLimitIsTooSmall) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto writer =
      SafetensorsWriter::Create(folder_ / "a.safetensors", {{"t", DType::kU8, {1 << 20}}});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(writer);
  EXPECT_NE(writer.error().message.find("file size limit"), std::string::npos)
      << writer.error().message;
  EXPECT_TRUE(FilesLeft().empty());
}

}  // namespace
}  // namespace halfbyte
