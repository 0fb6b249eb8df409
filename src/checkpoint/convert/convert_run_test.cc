// How a conversion runs: shards, interruption, refused targets, full disks, memory.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

#include "base/memory_limited_child.h"
#include "checkpoint/convert/convert_test_models.h"
#include "checkpoint/convert/report.h"

namespace halfbyte {
namespace {

using namespace test;  // NOLINT: the fixture's namespace
using ::testing::Test;

constexpr const char* kState = "halfbyte_convert.state";

class ConvertRun : public Test {
 protected:
  fs::path Source() const { return dir_.path() / "source"; }
  fs::path Target(const std::string& name = "target") const { return dir_.path() / name; }

  // Three shards, and a few files beside them.
  void WriteSource() {
    auto tensors = TinyModel(
        TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, true});
    Randomize(tensors, "experts");
    WriteSharded(Source(), TinyConfig(), tensors, [](const std::string& name) {
      return name.find("layers.") == 0 ? name[7] - '0' : 0;
    });
    WriteBytes(Source() / "tokenizer.json", "{\"tokenizer\": 1}");
    WriteBytes(Source() / "generation_config.json", "{}");
    WriteBytes(Source() / "halfbyte.json", "{\"default_thinking\": false}");
    WriteBytes(Source() / "inference" / "config.json", "{\"inner\": true}");
    WriteBytes(Source() / ".cache" / "lock", "");
    WriteBytes(Source() / "pytorch_model.bin", "the same weights again");
    WriteBytes(Source() / "hf_quant_config.json", "{\"stale\": true}");
  }

  static ConvertOptions Options() {
    ConvertOptions options = To(TargetFormat::kModelOptNvfp4);
    options.threads = 1;
    return options;
  }

  // Stops after `shards` shards, as a kill would, without removing the state.
  void Interrupt(int shards) {
    ConvertOptions options = Options();
    options.stop_after = [&shards](const ShardReport&) { return --shards == 0; };
    EXPECT_EQ(ErrorOf(Source(), Target(), options), "stopped");
  }

  TempDir dir_;
};

// A small file system of its own mounted on a directory; needs root.
class SmallFileSystem {
 public:
  SmallFileSystem(fs::path path, const char* options) : path_(std::move(path)) {
    fs::create_directories(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool MakeReadOnly() {
    return ::mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  fs::path path_;
  bool mounted_ = false;
};

TEST_F(ConvertRun, DoesNotFollowALinkToAFolder) {
  WriteSource();
  fs::create_directory_symlink(".", Source() / "again");
  MustConvert(Source(), Target(), Options());
  EXPECT_TRUE(fs::exists(Target() / "inference"));
  EXPECT_FALSE(fs::exists(Target() / "again"));
}

TEST_F(ConvertRun, KeepsTheShardsOfTheSourceAndCopiesWhatElseLiesThere) {
  WriteSource();
  const ConversionReport report = MustConvert(Source(), Target(), Options());
  EXPECT_EQ(
      NamesIn(Target()),
      (std::set<std::string>{"model-0.safetensors", "model-1.safetensors", "model-2.safetensors",
                             "model.safetensors.index.json", "config.json", "hf_quant_config.json",
                             "tokenizer.json", "generation_config.json", "halfbyte.json",
                             "inference/config.json"}));
  auto files = FilesIn(Target());
  EXPECT_EQ(files["tokenizer.json"], "{\"tokenizer\": 1}");
  EXPECT_EQ(files["inference/config.json"], "{\"inner\": true}");
  EXPECT_EQ(files["hf_quant_config.json"].find("stale"), std::string::npos);
  ASSERT_EQ(report.shards.size(), 3u);
  EXPECT_EQ(report.shards[1].file, "model-1.safetensors");
  EXPECT_EQ(report.shards[1].matrices.size(), 12u);
}

TEST_F(ConvertRun, GivesTheSameBytesWithAnyNumberOfThreads) {
  WriteSource();
  ConvertOptions options = Options();
  MustConvert(Source(), Target("one"), options);
  options.threads = 5;
  MustConvert(Source(), Target("five"), options);
  EXPECT_EQ(FilesIn(Target("one")), FilesIn(Target("five")));
}

TEST_F(ConvertRun, GateAndUpShareTheirScaleAlsoWhenTheyLieInDifferentShards) {
  auto tensors = TinyModel(
      TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, false});
  Randomize(tensors, "experts");
  WriteModel(Target("together"), TinyConfig(), tensors);
  WriteSharded(Source(), TinyConfig(), tensors, [](const std::string& name) {
    return name.find(".w1.") != std::string::npos   ? 0
           : name.find(".w3.") != std::string::npos ? 1
                                                    : 2;
  });
  MustConvert(Target("together"), Target("a"), Options());
  MustConvert(Source(), Target("b"), Options());
  const ModelCheckpoint a = OpenModel(Target("a"));
  const ModelCheckpoint b = OpenModel(Target("b"));
  ASSERT_EQ(b.checkpoint().files().size(), 3u);
  ASSERT_EQ(a.checkpoint().tensors().size(), b.checkpoint().tensors().size());
  for (const CheckpointTensor& tensor : a.checkpoint().tensors()) {
    const CheckpointTensor* other = b.checkpoint().Find(tensor.name());
    ASSERT_NE(other, nullptr) << tensor.name();
    EXPECT_EQ(BytesOf(tensor.View()), BytesOf(other->View())) << tensor.name();
  }
  const ModuleKey gate = ModuleKey::Layer(0, Module::kExpertGate, 0);
  const ModuleKey up = ModuleKey::Layer(0, Module::kExpertUp, 0);
  EXPECT_EQ(b.FindWeight(gate)->matrix.global_scale, b.FindWeight(up)->matrix.global_scale);
}

TEST_F(ConvertRun, Mxfp4PartnersInDifferentShardsAreExactUnderOneScale) {
  auto tensors = TinyModel(TinyConfig(), {});
  for (TestTensor& tensor : tensors) {  // gate 6 binades below up
    if (!tensor.name.ends_with(".w1.scale") || tensor.dtype != DType::kF8E8m0) continue;
    for (char& byte : tensor.bytes) byte = static_cast<char>(byte - 6);
  }
  WriteSharded(Source(), TinyConfig(), tensors, [](const std::string& name) {
    return name.find(".w1.") != std::string::npos ? 0 : 1;
  });
  MustConvert(Source(), Target(), Options());
  const ModelCheckpoint from = OpenModel(Source());
  const ModelCheckpoint to = OpenModel(Target());
  for (const ModuleKey& key : ExpertKeys(from.config())) {
    EXPECT_TRUE(SameBits(Decode(from, key), Decode(to, key))) << Describe(key);
    if (key.module != Module::kExpertGate) continue;
    ModuleKey up = key;
    up.module = Module::kExpertUp;
    EXPECT_EQ(to.FindWeight(key)->matrix.global_scale, to.FindWeight(up)->matrix.global_scale);
  }
}

TEST_F(ConvertRun, ContinuesWhereAnInterruptedRunStopped) {
  WriteSource();
  const ConversionReport whole = MustConvert(Source(), Target("whole"), Options());
  Interrupt(2);
  const std::set<std::string> left = NamesIn(Target());
  EXPECT_EQ(left, (std::set<std::string>{kState, "model-0.safetensors", "model-1.safetensors"}));
  const auto written = fs::last_write_time(Target() / "model-0.safetensors");

  const ConversionReport rest = MustConvert(Source(), Target(), Options());
  EXPECT_EQ(rest.resumed_shards, 2);
  EXPECT_EQ(fs::last_write_time(Target() / "model-0.safetensors"), written) << "not done again";
  EXPECT_EQ(FilesIn(Target()), FilesIn(Target("whole")));
  ASSERT_EQ(rest.shards.size(), whole.shards.size());
  for (size_t i = 0; i < whole.shards.size(); ++i) {
    EXPECT_EQ(ToJson(rest.shards[i]), ToJson(whole.shards[i])) << "the report is complete too";
  }
}

TEST_F(ConvertRun, DoesAFinishedShardAgainIfItsFileIsGone) {
  WriteSource();
  MustConvert(Source(), Target("whole"), Options());
  Interrupt(2);
  fs::remove(Target() / "model-1.safetensors");
  EXPECT_EQ(MustConvert(Source(), Target(), Options()).resumed_shards, 1);
  EXPECT_EQ(FilesIn(Target()), FilesIn(Target("whole")));
}

TEST_F(ConvertRun, SurvivesAStateLineThatWasCutShort) {
  WriteSource();
  MustConvert(Source(), Target("whole"), Options());
  Interrupt(1);
  std::ofstream(Target() / kState, std::ios::app) << "{\"file\": \"model-1.safeten";
  EXPECT_EQ(MustConvert(Source(), Target(), Options()).resumed_shards, 1);
  EXPECT_EQ(FilesIn(Target()), FilesIn(Target("whole")));
}

TEST_F(ConvertRun, RefusesToContinueWithOtherArgumentsUnlessToldToStartAgain) {
  WriteSource();
  Interrupt(1);
  const auto before = FilesIn(Target());
  ConvertOptions bf16_to_ct = Options();
  bf16_to_ct.format = TargetFormat::kCtNvfp4;
  std::string error = ErrorOf(Source(), Target(), bf16_to_ct);
  EXPECT_NE(error.find("format \"nvfp4\" there, \"nvfp4-ct\" asked for"), std::string::npos)
      << error;
  EXPECT_NE(error.find("--overwrite"), std::string::npos) << error;
  ConvertOptions wider = Options();
  wider.scope = ConvertScope::kExpertsAndShared;
  error = ErrorOf(Source(), Target(), wider);
  EXPECT_NE(error.find("scope"), std::string::npos) << error;
  ConvertOptions closer = Options();
  closer.four_over_six = true;
  error = ErrorOf(Source(), Target(), closer);
  EXPECT_NE(error.find("four_over_six"), std::string::npos) << error;
  EXPECT_EQ(FilesIn(Target()), before) << "a refusal changes nothing";

  bf16_to_ct.overwrite = true;
  EXPECT_EQ(MustConvert(Source(), Target(), bf16_to_ct).resumed_shards, 0);
  EXPECT_FALSE(fs::exists(Target() / kState));
}

TEST_F(ConvertRun, RefusesToContinueFromASourceThatHasChanged) {
  WriteSource();
  Interrupt(1);
  const fs::path shard = Source() / "model-2.safetensors";
  fs::last_write_time(shard, fs::last_write_time(shard) + std::chrono::seconds(1));
  const std::string error = ErrorOf(Source(), Target(), Options());
  EXPECT_NE(error.find("source files differ"), std::string::npos) << error;
}

TEST_F(ConvertRun, RefusesATargetThatIsTheSourceOrInsideIt) {
  WriteSource();
  const auto before = FilesIn(Source());
  ConvertOptions options = Options();
  options.overwrite = true;  // not even then
  std::string error = ErrorOf(Source(), Source(), options);
  EXPECT_NE(error.find("is the source"), std::string::npos) << error;
  error = ErrorOf(Source(), Source() / "deep" / "er", options);
  EXPECT_NE(error.find("inside the source"), std::string::npos) << error;
  fs::create_directory_symlink(Source(), Target("link"));
  error = ErrorOf(Source(), Target("link"), options);
  EXPECT_NE(error.find("is the source"), std::string::npos) << error;
  error = ErrorOf(Source().string() + "/", Source(), options);
  EXPECT_NE(error.find("is the source"), std::string::npos) << error;
  EXPECT_EQ(FilesIn(Source()), before);
}

TEST_F(ConvertRun, RefusesATargetThatIsAFileOrHoldsSomethingElse) {
  WriteSource();
  WriteBytes(Target("file"), "precious");
  std::string error = ErrorOf(Source(), Target("file"), Options());
  EXPECT_NE(error.find("is a file"), std::string::npos) << error;
  WriteBytes(Target() / "notes.txt", "precious");
  WriteBytes(Target() / "model-9.safetensors", "of another model");
  error = ErrorOf(Source(), Target(), Options());
  EXPECT_NE(error.find("is not empty"), std::string::npos) << error;

  ConvertOptions options = Options();
  options.overwrite = true;
  MustConvert(Source(), Target(), options);
  EXPECT_TRUE(fs::exists(Target() / "notes.txt"));
  EXPECT_FALSE(fs::exists(Target() / "model-9.safetensors"));
}

TEST_F(ConvertRun, RefusesATargetWhereAnotherConversionIsAtWork) {
  WriteSource();
  Interrupt(1);
  const int fd = ::open((Target() / kState).c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  const std::string error = ErrorOf(Source(), Target(), Options());
  ::close(fd);
  EXPECT_NE(error.find("another conversion"), std::string::npos) << error;
  MustConvert(Source(), Target(), Options());
}

TEST_F(ConvertRun, SaysWhatIsWrongWithTheSource) {
  EXPECT_NE(ErrorOf(Source(), Target(), Options()).find(Source().string()), std::string::npos);
  WriteSource();
  fs::remove(Source() / "model-1.safetensors");
  const std::string error = ErrorOf(Source(), Target(), Options());
  EXPECT_NE(error.find("model-1.safetensors"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(Target()));
}

TEST_F(ConvertRun, SaysBeforeTheWorkThatTheResultDoesNotFit) {
  WriteSource();
  const SmallFileSystem small(Target(), "size=128k");
  if (!small.mounted()) GTEST_SKIP() << "cannot mount a small file system here";
  const std::string error = ErrorOf(Source(), Target(), Options());
  EXPECT_NE(error.find("only 1"), std::string::npos) << error;
  EXPECT_NE(error.find("free some space"), std::string::npos) << error;
  EXPECT_EQ(NamesIn(Target()), (std::set<std::string>{kState}));
}

TEST_F(ConvertRun, ADiskThatFillsUpLeavesFinishedShardsAndContinuesLater) {
  WriteSource();
  const SmallFileSystem small(Target(), "size=8m");
  if (!small.mounted()) GTEST_SKIP() << "cannot mount a small file system here";
  ConvertOptions options = Options();
  options.stop_after = [&](const ShardReport&) {  // somebody else takes the rest
    std::ofstream hog(Target() / "hog", std::ios::binary);
    hog << std::string(size_t{16} << 20, 'x');
    return false;
  };
  const std::string error = ErrorOf(Source(), Target(), options);
  EXPECT_NE(error.find("no room for"), std::string::npos) << error;
  EXPECT_NE(error.find("model-1.safetensors"), std::string::npos) << error;
  EXPECT_EQ(NamesIn(Target()), (std::set<std::string>{kState, "hog", "model-0.safetensors"}));
  fs::remove(Target() / "hog");
  EXPECT_EQ(MustConvert(Source(), Target(), Options()).resumed_shards, 1);
  OpenModel(Target());
}

TEST_F(ConvertRun, SaysThatTheTargetIsReadOnly) {
  WriteSource();
  SmallFileSystem small(Target(), "size=8m");
  if (!small.mounted() || !small.MakeReadOnly()) GTEST_SKIP() << "cannot mount here";
  std::string error = ErrorOf(Source(), Target(), Options());
  EXPECT_NE(error.find("cannot write into the target: Read-only file system"), std::string::npos)
      << error;
  error = ErrorOf(Source(), Target() / "sub", Options());
  EXPECT_NE(error.find("cannot create the target: Read-only file system"), std::string::npos)
      << error;
}

#if HALFBYTE_CAN_LIMIT_MEMORY
// Fused tensors of 32 and 16 MiB in a file of over 140 MiB that is all zero and sparse. A
// thread holds one expert at a time, half a MiB of BF16, and what is mapped of the source leaves
// memory expert by expert.
TEST_F(ConvertRun, MemoryStaysBelowTheLargestTensorTimesTheThreads) {
  Json config = TinyConfig();
  config["n_routed_experts"] = 32;
  config["hidden_size"] = 512;
  config["moe_intermediate_size"] = 512;
  config["num_nextn_predict_layers"] = 0;
  const ModelConfig parsed = *ParseModelConfig(config, "config");
  Json header = Json::object();
  int64_t offset = 0;
  for (const ModuleKey& required : RequiredModules(parsed)) {
    ModuleKey key = required;
    if (IsRoutedExpert(key.module)) {
      if (key.expert != 0 || key.module == Module::kExpertUp) continue;
      if (key.module == Module::kExpertGate) key.module = Module::kExpertGateUp;
      key.expert = kNoExpert;
    }
    const Shape shape = *ExpectedShape(parsed, key);
    const DType dtype = key.module == Module::kRouterTable ? DType::kI64 : DType::kBf16;
    const int64_t bytes = ElementCount(shape) * DTypeSize(dtype);
    header[*FormatTensorName(key, Part::kWeight, NamingStyle::kHuggingFace)] = {
        {"dtype", DTypeName(dtype)}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  WriteBytes(Source() / "config.json", config.dump());
  const std::string head = RawSafetensors(header.dump(), "");
  WriteBytes(Source() / "model.safetensors", head);
  fs::resize_file(Source() / "model.safetensors", head.size() + static_cast<uintmax_t>(offset));
  ASSERT_GT(offset, int64_t{140} << 20);

  ConvertOptions options = Options();
  options.threads = 2;
  const MemoryLimits limits{.private_bytes = int64_t{8} << 20,
                            .resident_bytes = int64_t{16} << 20,
                            .threads = options.threads};
  ExpectWithin(limits, [&]() -> std::string {
    const auto report = ConvertCheckpoint(Source(), Target(), options);
    return report ? "" : report.error().message;
  });
}
#endif

TEST_F(ConvertRun, TheReportOfAShardComesBackFromItsStateLine) {
  WriteSource();
  const ConversionReport report = MustConvert(Source(), Target(), Options());
  const ShardReport& shard = report.shards.at(0);
  const ShardReport back = *ParseShardReport(*ParseJson(ToJson(shard).dump(), "line"), "line");
  EXPECT_EQ(ToJson(back), ToJson(shard));
  EXPECT_FALSE(ParseShardReport(Json{{"file", 3}}, "line"));
}

TEST_F(ConvertRun, TheJsonReportHoldsEveryMatrixAndTheTotals) {
  WriteSource();
  const Json json = ToJson(MustConvert(Source(), Target(), Options()));
  EXPECT_EQ(json["matrices"].size(), 36u);
  EXPECT_EQ(json["quantized"]["matrices"], 36);
  EXPECT_EQ(json["quantized"]["clipped_blocks"], 0);
  EXPECT_GT(json["quantized"]["sqnr_db"].get<double>(), 17);
  EXPECT_EQ(json["tensor_bytes"], OpenModel(Target()).checkpoint().tensor_bytes());
}

}  // namespace
}  // namespace halfbyte
