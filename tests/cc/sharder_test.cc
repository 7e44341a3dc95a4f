// Sharder: every shard runs exactly once, on any pool.

#include "tf_syncrep/cc/lib/sharder.h"

#include <atomic>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

// A pool whose threads never become free.
class BusySharder final : public Sharder {
 public:
  std::vector<std::function<void()>> tasks;

 private:
  int num_threads() const override { return 8; }
  void Schedule(std::function<void()> task) override {
    tasks.push_back(std::move(task));
  }
};

TEST(SharderTest, RunsEachShardOnce) {
  ThreadSharder sharder(4);
  for (const int64_t num_shards : {0, 1, 2, 3, 4, 100}) {
    std::vector<std::atomic<int>> runs(num_shards);
    sharder.Run(num_shards, [&](int64_t shard) { runs[shard]++; });
    for (const auto& run : runs) {
      EXPECT_EQ(run, 1);
    }
  }
}

TEST(SharderTest, WorkEndsThoughThePoolStaysBusy) {
  BusySharder sharder;
  int runs = 0;
  sharder.Run(16, [&](int64_t) { ++runs; });
  EXPECT_EQ(runs, 16);
  // Scheduled tasks start long after Run() returned, and must find nothing left
  // to do.
  for (const auto& task : sharder.tasks) {
    task();
  }
  EXPECT_EQ(runs, 16);
}

TEST(SharderTest, CallersOnOnePoolDoNotDisturbEachOther) {
  ThreadSharder sharder(4);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        sharder.Run(10, [&](int64_t shard) { sum += shard; });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(sum, 8 * 20 * 45);
}

TEST(SharderTest, MakesNoMoreShardsThanAreWorthIt) {
  const ThreadSharder one(1);
  const ThreadSharder four(4);
  EXPECT_EQ(one.NumShards(1000000, 10), 1);
  EXPECT_EQ(four.NumShards(0, 10), 1);
  EXPECT_EQ(four.NumShards(29, 10), 2);
  EXPECT_EQ(four.NumShards(1000000, 10), 16);
}

}  // namespace
}  // namespace tf_syncrep
