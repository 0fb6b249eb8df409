#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "base/available_memory.h"
#include "base/cgroup.h"
#include "base/file.h"
#include "base/file_watch.h"
#include "base/heap.h"
#include "base/json.h"
#include "base/kernel_fields.h"
#include "base/line_writer.h"
#include "base/mapped_file.h"
#include "base/memory_limited_child.h"
#include "base/memory_plan.h"
#include "base/memory_reserve.h"
#include "base/memory_usage.h"
#include "base/nearest_name.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "base/temporary_path.h"
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

TEST(ThreadPool, LoopsInsideLoopsRunInTheThreadThatStartsThem) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::atomic<int> visits{0};
    std::atomic<int> strangers{0};
    pool.ParallelFor(20, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const std::thread::id self = std::this_thread::get_id();
        pool.ParallelFor(10, 3, [&](int64_t from, int64_t to) {
          visits += static_cast<int>(to - from);
          strangers += std::this_thread::get_id() != self;
        });
      }
    });
    EXPECT_EQ(visits.load(), 200);
    EXPECT_EQ(strangers.load(), 0);
  }
}

TEST(ThreadPool, LoopsOfSeveralThreadsAtOnceAllFinish) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(4, 0);
  {
    std::vector<std::jthread> callers;
    for (int64_t& sum : sums) {
      callers.emplace_back([&] {
        std::vector<int64_t> values(64, 0);
        for (int round = 0; round < 500; ++round) {
          pool.ParallelFor(64, 4, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
          });
        }
        sum = std::accumulate(values.begin(), values.end(), int64_t{0});
      });
    }
  }
  for (const int64_t sum : sums) EXPECT_EQ(sum, 64 * 500);
}

TEST(ThreadPool, SleepingWorkersComeToLongLoops) {
  for (const int threads : {2, AvailableProcessors() + 1}) {  // the second is always crowded
    ThreadPool pool(threads);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::thread::id self = std::this_thread::get_id();
    std::atomic<bool> helped{false};
    pool.ParallelFor(20000, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != self) helped = true;
      if (!helped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    EXPECT_TRUE(helped) << threads << " threads";
  }
}

TEST(ThreadPool, ManyMoreThreadsThanProcessorsFinishShortLoops) {
  ThreadPool pool(4 * AvailableProcessors() + 1);
  int64_t done = 0;
  for (int round = 0; round < 5000; ++round) {
    std::atomic<int64_t> visits{0};
    pool.ParallelFor(40, 1, [&](int64_t begin, int64_t end) { visits += end - begin; });
    done += visits;
  }
  EXPECT_EQ(done, 40 * 5000);
}

// A folder as the kernel would show it.
class CgroupFolder {
 public:
  CgroupFolder() : path_(fs::path(testing::TempDir()) / "halfbyte_cgroup") {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~CgroupFolder() { fs::remove_all(path_); }

  void Write(const fs::path& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    ASSERT_TRUE(WriteFileAtomically(path_ / name, text));
  }
  CgroupLimits Read() const { return ReadCgroupLimits(path_ / "mount", path_ / "membership"); }
  AvailableMemory ReadAvailable() const { return ReadAvailableMemory(path_, path_ / "mount"); }

 private:
  fs::path path_;
};

TEST(Cgroup, NothingThereMeansNoLimit) {
  const CgroupFolder folder;
  EXPECT_FALSE(folder.Read().processors);
  folder.Write("membership", "0::/a\nnonsense\n4:cpu:/a\n5:memory:/a\n");
  folder.Write("mount/a/cpu.max", "max 100000\n");
  folder.Write("mount/a/memory.max", "max\n");
  folder.Write("mount/cpu/a/cpu.cfs_quota_us", "-1\n");
  folder.Write("mount/cpu/a/cpu.cfs_period_us", "100000\n");
  folder.Write("mount/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(folder.Read().processors);
  EXPECT_FALSE(folder.Read().memory);
}

TEST(Cgroup, TheTightestGroupOnTheWayUpCounts) {
  const CgroupFolder folder;
  folder.Write("membership", "0::/a/b\n");
  folder.Write("mount/a/b/cpu.max", "800000 100000\n");
  folder.Write("mount/a/cpu.max", "150000 100000\n");
  folder.Write("mount/cpu.max", "max 100000\n");
  folder.Write("mount/a/b/memory.max", "4096\n");
  EXPECT_EQ(folder.Read().processors, 1.5);
  EXPECT_EQ(folder.Read().memory->free_bytes, 4096);
}

TEST(Cgroup, AContainersOwnGroupIsAtTheRoot) {
  const CgroupFolder folder;
  folder.Write("membership", "0::/on/the/host\n");
  folder.Write("mount/cpu.max", "200000 100000\n");
  EXPECT_EQ(folder.Read().processors, 2.0);
}

TEST(Cgroup, VersionOneIsUnderstood) {
  const CgroupFolder folder;
  folder.Write("membership", "4:cpu,cpuacct:/a\n5:memory:/a\n6:cpuset:/x\n");
  folder.Write("mount/cpu/a/cpu.cfs_quota_us", "250000\n");
  folder.Write("mount/cpu/a/cpu.cfs_period_us", "100000\n");
  folder.Write("mount/memory/a/memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(folder.Read().processors, 2.5);
  EXPECT_EQ(folder.Read().memory->free_bytes, 1048576);
}

TEST(Cgroup, PagesOfFilesAreFreeAndTheFullestGroupCounts) {
  const CgroupFolder folder;
  folder.Write("membership", "0::/a/b\n");
  folder.Write("mount/a/b/memory.max", "10000\n");
  folder.Write("mount/a/b/memory.current", "7000\n");
  folder.Write("mount/a/b/memory.stat", "anon 2500\nactive_file 4000\ninactive_file 500\n");
  EXPECT_EQ(folder.Read().memory->free_bytes, 7500);
  folder.Write("mount/a/memory.max", "max\n");
  folder.Write("mount/a/memory.high", "20000\n");
  folder.Write("mount/a/memory.current", "15000\n");
  EXPECT_EQ(folder.Read().memory->free_bytes, 5000);
  EXPECT_EQ(folder.Read().memory->limit_bytes, 20000);
  folder.Write("mount/a/memory.current", "25000\n");
  EXPECT_EQ(folder.Read().memory->free_bytes, 0);
  folder.Write("membership", "5:memory:/a/b\n");
  folder.Write("mount/memory/a/b/memory.limit_in_bytes", "10000\n");
  folder.Write("mount/memory/a/b/memory.usage_in_bytes", "7000\n");
  folder.Write("mount/memory/a/b/memory.stat",
               "active_file 1\ntotal_active_file 1000\ntotal_inactive_file 2000\n");
  EXPECT_EQ(folder.Read().memory->free_bytes, 6000);
}

TEST(AvailableMemory, IsWhatTheTightestBoundLeaves) {
  const CgroupFolder folder;
  EXPECT_GT(ReadAvailableMemory().resident->bytes, 0);
  EXPECT_FALSE(folder.ReadAvailable().resident);  // nobody says anything
  folder.Write("meminfo", "MemTotal: 100 kB\nMemAvailable:      8 kB\n");
  EXPECT_EQ(folder.ReadAvailable().resident->bytes, 8192);
  EXPECT_EQ(folder.ReadAvailable().resident->where, "on this machine");
  folder.Write("sys/vm/overcommit_memory", "2\n");
  folder.Write("meminfo", "MemAvailable: 8 kB\nCommitLimit: 20 kB\nCommitted_AS: 13 kB\n");
  EXPECT_EQ(folder.ReadAvailable().resident->bytes, 7168);
  folder.Write("self/cgroup", "0::/a\n");
  folder.Write("mount/a/memory.max", "5000\n");
  const AvailableMemory available = folder.ReadAvailable();
  EXPECT_EQ(available.resident->bytes, 5000);
  EXPECT_NE(available.resident->where.find("/mount/a (limit 5.00 kB)"), std::string::npos)
      << available.resident->where;
  EXPECT_EQ(available.ForEachOf(4).resident->bytes, 1250);
}

#if HALFBYTE_CAN_LIMIT_MEMORY
TEST(Heap, GivesLargeBlocksBackWhicheverThreadHadThem) {
  test::ExpectWithin({.private_bytes = 256 << 20, .resident_bytes = 256 << 20, .threads = 4},
                     []() -> std::string {
                       ReturnLargeBlocks();
                       std::barrier all_have_one(4);
                       std::vector<std::thread> threads;
                       const int64_t before = PrivateBytes();
                       int64_t after = 0;
                       for (int i = 0; i < 4; ++i) {
                         threads.emplace_back([&, i] {
                           for (int round = 0; round < 3; ++round) {
                             const std::vector<char> block(30 << 20, 1);
                             all_have_one.arrive_and_wait();
                           }
                           all_have_one.arrive_and_wait();
                           if (i == 0) after = PrivateBytes();  // while all are there
                           all_have_one.arrive_and_wait();
                         });
                       }
                       for (std::thread& thread : threads) thread.join();
                       const int64_t kept = after - before - 4 * test::ThreadStackBytes();
                       return kept < (8 << 20) ? "" : fmt::format("{} bytes kept", kept);
                     });
}

TEST(Heap, GivesFreePagesBackFromBetweenBlocksInUse) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have an allocator of their own";
#endif
  constexpr int kBlocks = 64 << 10, kBytes = 1000, kOneInUseOf = 256;
  const auto resident = [] { return ReadKernelBytes("/proc/self/status", "VmRSS:").value_or(0); };
  const int64_t before = resident();
  std::vector<std::unique_ptr<char[]>> blocks;
  std::thread([&] {  // in a heap of its own
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(std::make_unique<char[]>(kBytes));
  })
      .join();
  EXPECT_GT(resident() - before, 60 << 20);
  for (int i = 0; i < kBlocks; ++i) {
    if (i % kOneInUseOf != 0) blocks[i].reset();
  }
  ReturnFreePages();
  EXPECT_LT(resident() - before, 16 << 20);
}

TEST(MemoryReserve, HelpsAnybodyOnceAndEssentialThreadsBeyondThat) {
  // Far more than other tests have left in the heap.
  constexpr int64_t kReserve = 256 << 20;
  test::ExpectWithin({.private_bytes = kReserve + (8 << 20), .resident_bytes = kReserve},
                     []() -> std::string {
                       if (MemoryReserve::given_up()) return "given up before it was installed";
                       if (!MemoryReserve::Install(kReserve)) return "not installed";
                       const auto can_have = [](int64_t mib) {
                         try {
                           return !std::vector<char>(static_cast<size_t>(mib) << 20).empty();
                         } catch (const std::bad_alloc&) {
                           return false;
                         }
                       };
                       if (!can_have(4) || MemoryReserve::given_up()) return "given up for nobody";
                       if (!can_have(80)) return "no half for anybody";
                       if (!MemoryReserve::given_up()) return "still there";
                       if (!MemoryReserve::Refill()) return "not put aside again";
                       if (can_have(200)) return "the limit is not kept";
                       if (!MemoryReserve::Refill()) return "not put aside after a failure";
                       MarkEssentialThread();
                       if (!can_have(200)) return "no reserve";
                       if (!MemoryReserve::Refill()) return "not put aside again";
                       return can_have(200) ? "" : "no reserve the second time";
                     });
}
#endif

TEST(MemoryPlan, SaysWhatItNeedsOfWhatAndWhatThereIs) {
  MemoryPlan plan;
  plan.Add("packed weights", 3'000'000);
  plan.Add("nothing", 0);
  plan.Add("packed weights", 1'000'000);
  plan.Add("KV cache", 500'000);
  plan.AddMapped("checkpoint", 9'000'000);
  EXPECT_EQ(plan.resident_bytes(), 4'500'000);
  EXPECT_EQ(plan.Describe(),
            "4.50 MB (packed weights 4.00 MB, KV cache 500.00 kB) and 9.00 MB of mapped files");
  AvailableMemory available{.resident = MemoryBound{4'500'000, "on this machine"}, .addresses = {}};
  EXPECT_TRUE(plan.Check(available, "DIR", "x"));
  available.addresses = MemoryBound{13'499'999, "under RLIMIT_AS (ulimit -v)"};
  const Status addresses = plan.Check(available, "DIR", "raise it");
  ASSERT_FALSE(addresses);
  EXPECT_EQ(addresses.error().kind, ErrorKind::kMemory);
  EXPECT_EQ(addresses.error().message,
            "DIR needs memory of 4.50 MB (packed weights 4.00 MB, KV cache 500.00 kB) and 9.00 MB "
            "of mapped "
            "files, but 13.50 MB are free under RLIMIT_AS (ulimit -v); raise it");
  available = {.resident = MemoryBound{4'499'999, "here"}, .addresses = {}};
  EXPECT_FALSE(plan.Check(available, "DIR", "x"));
  EXPECT_TRUE(plan.Check({}, "DIR", "x"));  // the kernel does not say
  plan.Add("KV cache", INT64_MAX);
  EXPECT_EQ(plan.resident_bytes(), INT64_MAX);
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

TEST(Json, ReadsAndPrintsTheNumbersThatPythonAddsToJson) {
  const std::string text =
      R"({"a":NaN,"b":[-Infinity,{"c":Infinity}],"s":"NaN, -Infinity","-Infinity":-1.5})";
  const Json json = *ParseJson(text, "c");
  EXPECT_TRUE(std::isnan(json["a"].get<double>()));
  EXPECT_EQ(json["b"][0], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(json["b"][1]["c"], std::numeric_limits<double>::infinity());
  EXPECT_EQ(json["s"], "NaN, -Infinity");
  EXPECT_EQ(PrintedJson(json, -1), text);
  for (const char* wrong : {"NaNs", "nan", "inf", "+Infinity", "--Infinity", "[1NaN]", "- Infinity",
                            "{NaN:1}", "NaN NaN"}) {
    EXPECT_FALSE(ParseJson(wrong, "c")) << wrong;
  }
}

TEST(Json, AFieldThatIsReadMustBeFinite) {
  const Json json = *ParseJson(R"({"eps":NaN,"theta":Infinity,"layers":-Infinity})", "c");
  const JsonObject object = *JsonObject::Of(json, "config.json");
  EXPECT_EQ(object.Number("eps").error().message,
            "config.json: field eps must be a finite number, not NaN");
  EXPECT_EQ(object.Number("theta").error().message,
            "config.json: field theta must be a finite number, not Infinity");
  EXPECT_EQ(object.Int("layers").error().message,
            "config.json: field layers must be an integer, not -Infinity");
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
  const auto files = [&] { return std::distance(fs::directory_iterator(dir), {}); };
  EXPECT_EQ(files(), 1);
  EXPECT_FALSE(WriteFileAtomically(dir / "absent" / "a.txt", "x"));
  EXPECT_FALSE(ReadTextFile(path, 2));
  EXPECT_FALSE(ReadTextFile(dir));
  fs::remove_all(dir);
}

TEST(OutputFile, IsNotThereBeforeItIsCompleteAndTouchesNothingElse) {
  const fs::path dir = fs::path(testing::TempDir()) / "halfbyte_output_test";
  fs::remove_all(dir);
  fs::create_directories(dir);
  std::ofstream(dir / "a.txt.tmp") << "somebody's";
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir)) found.push_back(entry.path().filename());
    return found;
  };
  {
    OutputFile given_up = *OutputFile::Create(dir / "a.txt");
    ASSERT_EQ(::write(given_up.fd(), "half", 4), 4);
  }
  EXPECT_EQ(names(), std::vector<std::string>{"a.txt.tmp"});
  ASSERT_TRUE(WriteFileAtomically(dir / "a.txt", "whole"));
  EXPECT_EQ(*ReadTextFile(dir / "a.txt.tmp"), "somebody's");
  // Of a link, where it leads is meant; a device would vanish.
  fs::create_symlink(dir / "a.txt", dir / "link");
  ASSERT_TRUE(WriteFileAtomically(dir / "link", "new"));
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(*ReadTextFile(dir / "a.txt"), "new");
  EXPECT_FALSE(WriteFileAtomically("/dev/null", "x"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(names().size(), 3u);
  fs::remove_all(dir);
}

TEST(TemporaryPath, RemovesWhatItStandsForAndNothingThatCameAfterIt) {
  const fs::path path = fs::path(testing::TempDir()) / "halfbyte_temporary";
  const auto make = [&](const char* text) {
    fs::remove(path);
    std::ofstream(path) << text;
  };
  make("ours");
  { const TemporaryPath temporary(path); }
  EXPECT_FALSE(fs::exists(path));
  make("ours");
  {
    const TemporaryPath temporary(path);
    fs::rename(path, path.string() + ".moved");
    make("somebody's");
  }
  EXPECT_EQ(*ReadTextFile(path), "somebody's");
  {
    TemporaryPath temporary(path);
    TemporaryPath other = std::move(temporary);
    other.Keep();
  }
  EXPECT_TRUE(fs::exists(path));
  fs::remove(path);
  fs::remove(path.string() + ".moved");
}

TEST(TemporaryPathDeathTest, IsGoneHoweverTheProgramIsKilled) {
  const fs::path path = fs::path(testing::TempDir()) / "halfbyte_killed";
  for (const int number : {SIGTERM, SIGINT, SIGABRT, SIGSEGV}) {
    // A sanitizer handles this signal itself, tells of it and exits.
    const auto killed = [number](int status) {
      return testing::KilledBySignal(number)(status) ||
             (number == SIGSEGV && WIFEXITED(status) && WEXITSTATUS(status) != 0);
    };
    std::ofstream(path) << "ours";
    EXPECT_EXIT(
        {
          RemoveTemporaryPathsWhenKilled();
          const TemporaryPath temporary(path);
          std::raise(number);
        },
        killed, "");
    EXPECT_FALSE(fs::exists(path)) << number;
  }
}

TEST(FileWatch, NoticesWritesAndCutsButNoReplacement) {
  const fs::path path = fs::path(testing::TempDir()) / "halfbyte_watched";
  ASSERT_TRUE(WriteFileAtomically(path, "one"));
  FileWatch watch = *FileWatch::Open({path});
  EXPECT_EQ(watch.Changed(), std::nullopt);
  ASSERT_TRUE(ReadTextFile(path));
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0), 0);  // touch(1)
  EXPECT_EQ(watch.Changed(), std::nullopt);
  std::ofstream(path, std::ios::app) << "two";
  EXPECT_EQ(watch.Changed(), path);
  EXPECT_EQ(watch.Changed(), std::nullopt);
  fs::resize_file(path, 0);
  EXPECT_EQ(watch.Changed(), path);
  ASSERT_TRUE(WriteFileAtomically(path, "another file"));
  EXPECT_EQ(watch.Changed(), std::nullopt);
  fs::remove(path);
  EXPECT_FALSE(FileWatch::Open({path}));
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

TEST(MappedFile, RefusesAPipeWithoutWaitingForItsWriter) {
  const fs::path path = fs::path(testing::TempDir()) / "halfbyte_pipe";
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto pipe = MappedFile::Open(path);
  ASSERT_FALSE(pipe);
  EXPECT_EQ(pipe.error().message, path.string() + ": not a regular file");
  fs::remove(path);
}

TEST(MappedFileDeathTest, TruncationMeanwhileIsReadAsZerosByWhoAsksForThat) {
  const fs::path path = fs::path(testing::TempDir()) / "halfbyte_truncated";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(100000, 'x')));
  EXPECT_EXIT(
      {
        ReadZerosWhereAMappedFileIsTruncated();
        const MappedFile file = *MappedFile::Open(path);
        const bool before = HasReadTruncatedFiles();
        fs::resize_file(path, 10);
        const volatile std::byte first = file.bytes().front();
        const volatile std::byte last = file.bytes().back();
        const bool right = first == std::byte{'x'} && last == std::byte{0};
        std::exit(!before && HasReadTruncatedFiles() && right ? 42 : 1);
      },
      testing::ExitedWithCode(42), "");
  fs::remove(path);
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

TEST(MemoryUsage, ThePeakIsThisProgramsOwn) {
  constexpr size_t kSize = size_t{64} << 20;
  const int64_t before = PeakResidentBytes();
  EXPECT_GT(before, 0);
  const std::string touched(kSize, 'x');
  EXPECT_GE(PeakResidentBytes(), static_cast<int64_t>(touched.size()));
  EXPECT_GE(PeakResidentBytes(), before);
}

TEST(NearestName, FindsTheMistypedOneAndNothingThatIsFarAway) {
  const std::vector<std::string> names = {"--host", "--port", "--max-num-seqs", "--threads"};
  EXPECT_EQ(NearestName("--prot", names), "--port");
  EXPECT_EQ(NearestName("--port", names), "--port");
  EXPECT_EQ(NearestName("--max-num-seq", names), "--max-num-seqs");
  EXPECT_EQ(NearestName("--max-nmu-seqs", names), "--max-num-seqs");
  EXPECT_EQ(NearestName("--hots", {}), std::nullopt);
  EXPECT_EQ(NearestName("--temperature", names), std::nullopt);
  EXPECT_EQ(NearestName("", names), std::nullopt);
}

TEST(Progress, TellsItsListenerHowFarItIs) {
  std::vector<ProgressReport> told;
  Progress progress("load", 200, "B", [&](const ProgressReport& r) { told.push_back(r); });
  progress.Advance(50);
  progress.Advance(150);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].label, "load");
  EXPECT_EQ(told[0].share(), 0.25);
  EXPECT_DOUBLE_EQ(told[0].seconds_left(), 3 * told[0].seconds);
  EXPECT_EQ(told[0].unit, "B");
  EXPECT_EQ(told[1].share(), 1.0);
  EXPECT_EQ(told[1].seconds_left(), 0);
}

TEST(Progress, DescribesItselfInALine) {
  ProgressReport report{.label = "load weights", .unit = "B", .total = 4'000'000'000};
  EXPECT_EQ(report.Describe(), "load weights");
  report.done = 1'000'000'000;
  report.seconds = 50;
  EXPECT_EQ(report.Describe(), "load weights: 25 %, 1.00 GB of 4.00 GB, 20.00 MB/s, 2:30 left");
}

TEST(Progress, QuantitiesReadWell) {
  EXPECT_EQ(HumanQuantity(159609485896.0, "B"), "159.61 GB");
  EXPECT_EQ(HumanQuantity(999, "B"), "999 B");
}

TEST(LineWriter, NeverWaitsForAReaderAndCountsWhatIsLost) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  LineWriter writer(ends[1]);
  EXPECT_TRUE(writer.Write("first\n"));
  EXPECT_TRUE(writer.Drain(std::chrono::seconds(10)));
  const std::string line(100'000, 'x');
  int64_t taken = 0;
  for (int i = 0; i < 100; ++i) taken += writer.Write(line) ? 1 : 0;
  EXPECT_GE(taken, LineWriter::kMostBytes / std::ssize(line));
  EXPECT_LT(taken, 100);
  EXPECT_EQ(writer.dropped(), 100 - taken);
  EXPECT_FALSE(writer.Drain(std::chrono::milliseconds(1)));
  // The reader comes back: all that was taken arrives, in order.
  const size_t expected = 6 + static_cast<size_t>(taken) * line.size();
  std::string read;
  std::vector<char> bytes(1 << 16);
  while (read.size() < expected) {
    const ssize_t count = ::read(ends[0], bytes.data(), bytes.size());
    ASSERT_GT(count, 0);
    read.append(bytes.data(), static_cast<size_t>(count));
  }
  EXPECT_EQ(read.substr(0, 7), "first\nx");
  EXPECT_TRUE(writer.Drain(std::chrono::seconds(10)));
  EXPECT_EQ(writer.dropped(), 100 - taken);
  ::close(ends[0]);
}

TEST(LineWriter, CountsWhatTheDescriptorRefuses) {
  const int full = ::open("/dev/full", O_WRONLY);
  LineWriter writer(full);
  EXPECT_TRUE(writer.Write("lost\n"));
  EXPECT_TRUE(writer.Drain(std::chrono::seconds(10)));
  EXPECT_EQ(writer.dropped(), 1);
}

}  // namespace
}  // namespace halfbyte
