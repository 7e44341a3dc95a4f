// ReadMemoryLeft() and MemoryGuard.

#include "tf_syncrep/cc/lib/memory_guard.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;
constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// A folder with the kernel's files of a made-up machine.
class ReadMemoryLeftTest : public testing::Test {
 protected:
  ReadMemoryLeftTest() {
    std::string name =
        (std::filesystem::temp_directory_path() / "memory_XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~ReadMemoryLeftTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const auto file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  void WriteMachine() {
    Write("proc/meminfo",
          "MemTotal:       16384 kB\nMemFree:         1 kB\n"
          "MemAvailable:    8192 kB\nSwapFree:        99999 kB\n");
  }

  void ExpectLeft(int64_t bytes, int64_t total) {
    const MemoryLeft left = ReadMemoryLeft(root_.string());
    EXPECT_EQ(left.bytes, bytes);
    EXPECT_EQ(left.total, total);
  }

  std::filesystem::path root_;
};

TEST_F(ReadMemoryLeftTest, WithoutFilesNothingIsKnown) {
  ExpectLeft(kUnknown, kUnknown);
}

TEST_F(ReadMemoryLeftTest, OfTheMachine) {
  WriteMachine();
  ExpectLeft(8 * kMegabyte, 16 * kMegabyte);
}

TEST_F(ReadMemoryLeftTest, OfAGroupOfVersion2WithoutPagesThatAreTakenBack) {
  WriteMachine();
  Write("proc/self/cgroup", "0::/box/task\n");
  Write("sys/fs/cgroup/box/task/memory.max", "4194304\n");
  Write("sys/fs/cgroup/box/task/memory.current", "3145728\n");
  Write("sys/fs/cgroup/box/task/memory.stat",
        "anon 1\ninactive_file 524288\nslab 7\n");
  ExpectLeft(4 * kMegabyte - 3 * kMegabyte + kMegabyte / 2, 4 * kMegabyte);
}

TEST_F(ReadMemoryLeftTest, OfTheGroupAroundIt) {
  WriteMachine();
  Write("proc/self/cgroup", "0::/box/task\n");
  Write("sys/fs/cgroup/box/task/memory.max", "max\n");
  Write("sys/fs/cgroup/box/task/memory.current", "3145728\n");
  Write("sys/fs/cgroup/box/memory.max", "5242880\n");
  Write("sys/fs/cgroup/box/memory.current", "4194304\n");
  ExpectLeft(kMegabyte, 5 * kMegabyte);
}

// In a container the file system begins at its own group.
TEST_F(ReadMemoryLeftTest, OfTheGroupThatIsTheRoot) {
  WriteMachine();
  Write("proc/self/cgroup", "0::/../elsewhere\n");
  Write("sys/fs/cgroup/memory.max", "2097152\n");
  Write("sys/fs/cgroup/memory.current", "1048576\n");
  ExpectLeft(kMegabyte, 2 * kMegabyte);
}

TEST_F(ReadMemoryLeftTest, OfAGroupOfVersion1) {
  WriteMachine();
  Write("proc/self/cgroup",
        "9:name=systemd:/\n5:cpu,memory:/box\n3:memory_not:/x\n0::/\n");
  Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "3145728\n");
  Write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "3145727\n");
  Write("sys/fs/cgroup/memory/box/memory.stat",
        "inactive_file 9\ntotal_inactive_file 99\n");
  ExpectLeft(100, 3 * kMegabyte);
}

TEST_F(ReadMemoryLeftTest, AGroupWithoutALimitIsTheMachine) {
  WriteMachine();
  Write("proc/self/cgroup", "5:memory:/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "7\n");
  ExpectLeft(8 * kMegabyte, 16 * kMegabyte);
}

TEST_F(ReadMemoryLeftTest, AFullGroupHasNothingLeft) {
  WriteMachine();
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "100\n");
  Write("sys/fs/cgroup/memory.current", "200\n");
  ExpectLeft(0, 100);
}

TEST_F(ReadMemoryLeftTest, WhatIsNoNumberSaysNothing) {
  Write("proc/meminfo", "MemTotal: many\nMemAvailable:\n");
  Write("proc/self/cgroup", "memory\n1:memory\n0::/\n:::\n");
  Write("sys/fs/cgroup/memory.max", "-5\n");
  Write("sys/fs/cgroup/memory.current", "");
  ExpectLeft(kUnknown, kUnknown);
}

TEST(MemoryLeftTest, OfThisMachine) {
  const MemoryLeft left = ReadMemoryLeft();
  EXPECT_GT(left.bytes, 0);
  EXPECT_LE(left.bytes, left.total);
}

TEST(MemoryGuardTest, KeepsAReserve) {
  EXPECT_EQ(MemoryGuard::Reserve(1), 64 * kMegabyte);
  EXPECT_EQ(MemoryGuard::Reserve(8192 * kMegabyte), 128 * kMegabyte);
  EXPECT_EQ(MemoryGuard::Reserve(kUnknown), 512 * kMegabyte);
}

TEST(MemoryGuardTest, ReadsOnceInSoManyBytes) {
  int num_reads = 0;
  MemoryGuard guard([&]() -> MemoryLeft {
    ++num_reads;
    return {kUnknown, kUnknown};
  });
  MemoryLeft left;
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(guard.TryTake(MemoryGuard::kUncheckedBytes / 4, &left));
  }
  EXPECT_EQ(num_reads, 10);
}

TEST(MemoryGuardTest, RefusesWhatWouldTakeFromTheReserve) {
  MemoryLeft now = {1000 * kMegabyte, 6400 * kMegabyte};
  MemoryGuard guard([&] { return now; });
  MemoryLeft left = {};
  EXPECT_TRUE(guard.TryTake(900 * kMegabyte, &left));
  EXPECT_FALSE(guard.TryTake(900 * kMegabyte + 1, &left));
  EXPECT_EQ(left.bytes, now.bytes);
  EXPECT_EQ(left.total, now.total);
  // After that even a byte is asked about, until there is memory again.
  now.bytes = 10 * kMegabyte;
  EXPECT_FALSE(guard.TryTake(1, &left));
  EXPECT_FALSE(guard.TryTake(1, &left));
  now.bytes = 200 * kMegabyte;
  EXPECT_TRUE(guard.TryTake(1, &left));
  now.bytes = 0;
  EXPECT_TRUE(guard.TryTake(1, &left));  // few bytes are not asked about
}

}  // namespace
}  // namespace tf_syncrep
