// RowSnapshot: reads return the old rows, whatever is overwritten meanwhile.

#include "tf_syncrep/cc/lib/rows/row_snapshot.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {
namespace {

constexpr int64_t kNoBound = int64_t{1} << 40;
constexpr std::chrono::seconds kDeadline(20);

bool Never() { return false; }

// A table and a slot of other width, filled with numbers that do not repeat.
struct Arrays {
  explicit Arrays(int64_t rows)
      : table(rows * kTableWidth), slot(rows * kSlotWidth) {
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<int32_t>(i);
    }
    for (size_t i = 0; i < slot.size(); ++i) {
      slot[i] = -static_cast<int32_t>(i);
    }
  }

  static constexpr int64_t kTableWidth = 3;
  static constexpr int64_t kSlotWidth = 1;

  static std::vector<int64_t> RowBytes() {
    return {kTableWidth * 4, kSlotWidth * 4};
  }
  std::vector<const char*> Data() const {
    return {reinterpret_cast<const char*>(table.data()),
            reinterpret_cast<const char*>(slot.data())};
  }
  void Overwrite(int64_t row, int32_t value) {
    std::fill_n(table.begin() + row * kTableWidth, kTableWidth, value);
    std::fill_n(slot.begin() + row * kSlotWidth, kSlotWidth, value);
  }

  std::vector<int32_t> table;
  std::vector<int32_t> slot;
};

// The rows that were read from a snapshot, put together again.
struct ReadRows {
  explicit ReadRows(int64_t rows)
      : table(rows * Arrays::kTableWidth), slot(rows * Arrays::kSlotWidth) {}

  void Next(RowSnapshot* snapshot, const Arrays& arrays, int64_t num) {
    snapshot->Read(
        arrays.Data(), num, /*uses=*/-1,
        {reinterpret_cast<char*>(table.data() + next * Arrays::kTableWidth),
         reinterpret_cast<char*>(slot.data() + next * Arrays::kSlotWidth)});
    next += num;
  }

  // Reads all rows, few at a time.
  void All(RowSnapshot* snapshot, const Arrays& arrays) {
    const auto rows = static_cast<int64_t>(slot.size());
    while (next < rows) {
      Next(snapshot, arrays, std::min<int64_t>(100, rows - next));
    }
  }

  int64_t next = 0;
  std::vector<int32_t> table;
  std::vector<int32_t> slot;
};

TEST(RowSnapshotTest, ReadsOfRowsThatAreNotInUseThatTheyAreNot) {
  KeptBytes kept(kNoBound, KeptBytes::Seconds(60));
  RowSnapshot snapshot(4, {4, 8}, &kept);
  std::vector<int32_t> table = {1, 2, 3, 4};
  std::vector<int32_t> uses = {9, 2, -1, 0, 0, 0, 0, 0};
  const std::vector<const char*> data = {
      reinterpret_cast<const char*>(table.data()),
      reinterpret_cast<const char*>(uses.data())};
  // The last row is handed out after the moment of the snapshot.
  const int64_t row = 3;
  ASSERT_EQ(snapshot.Keep(data, &row, 0, 1), 1);
  table[3] = 5;
  uses[7] = 1;
  std::vector<int32_t> read_table(4, -7);
  std::vector<int32_t> read_uses(8, -7);
  snapshot.Read(data, 4, /*uses=*/1,
                {reinterpret_cast<char*>(read_table.data()),
                 reinterpret_cast<char*>(read_uses.data())});
  EXPECT_EQ(read_table, (std::vector<int32_t>{1, -7, -7, 4}));
  EXPECT_EQ(read_uses, (std::vector<int32_t>{9, 2, -1, 0, 0, 0, 0, 0}));
}

TEST(RowSnapshotTest, PassesFreeRowsUntilOneThatIsInUseOrKept) {
  constexpr int64_t kRows = 10000;  // in three ranges
  std::vector<int32_t> uses(2 * kRows);
  const std::vector<const char*> data = {
      reinterpret_cast<const char*>(uses.data())};
  KeptBytes kept(1 << 20, KeptBytes::Seconds(600));
  RowSnapshot snapshot(kRows, {8}, &kept);
  const int64_t rows[] = {4097};
  snapshot.Keep(data, rows, 0, 1);
  uses[2 * 4097 + 1] = 1;
  uses[2 * 9000 + 1] = 5;
  EXPECT_EQ(snapshot.SkipFree(data, 50, 0), 50);
  EXPECT_EQ(snapshot.SkipFree(data, kRows, 0), 4097 - 50);
  EXPECT_EQ(snapshot.SkipFree(data, kRows, 0), 0);
  int32_t use[2];
  snapshot.Read(data, 1, 0, {reinterpret_cast<char*>(use)});
  EXPECT_EQ(use[1], 0);
  EXPECT_EQ(snapshot.SkipFree(data, kRows, 0), 9000 - 4098);
  EXPECT_TRUE(kept.TryAdd(1 << 20));  // what was kept is freed
  snapshot.Read(data, 1, 0, {reinterpret_cast<char*>(use)});
  EXPECT_EQ(use[1], 5);
  EXPECT_EQ(snapshot.SkipFree(data, kRows, 0), kRows - 9001);
  EXPECT_TRUE(snapshot.IsRead());
}

TEST(RowSnapshotTest, ReadsWhatWasInAnyInterleaving) {
  for (int seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int64_t rows = 1 + random() % 20000;
    Arrays arrays(rows);
    const Arrays before = arrays;
    KeptBytes kept(kNoBound, KeptBytes::Seconds(60));
    RowSnapshot snapshot(rows, Arrays::RowBytes(), &kept);
    ReadRows read(rows);
    while (read.next < rows) {
      std::vector<int64_t> some(random() % 200);
      for (int64_t& row : some) {
        row = random() % rows;
      }
      if (random() % 10 == 0) {
        some = {-1, rows, rows + 5};  // these rows do not exist
        EXPECT_EQ(snapshot.Keep(arrays.Data(), some.data(), 0, 3), 3);
      } else if (random() % 40 == 0) {
        int64_t begin = 0;
        while (begin < rows) {
          const int64_t end =
              snapshot.Keep<int64_t>(arrays.Data(), nullptr, begin, rows);
          for (int64_t row = begin; row < end; ++row) {
            arrays.Overwrite(row, -7);
          }
          begin = end;
        }
      } else {
        snapshot.Keep(arrays.Data(), some.data(), 0,
                      static_cast<int64_t>(some.size()));
        for (const int64_t row : some) {
          arrays.Overwrite(row, static_cast<int32_t>(random()));
        }
      }
      read.Next(&snapshot, arrays,
                std::min<int64_t>(rows - read.next, random() % 3000));
    }
    EXPECT_TRUE(snapshot.IsRead());
    EXPECT_EQ(read.table, before.table) << "seed " << seed;
    EXPECT_EQ(read.slot, before.slot) << "seed " << seed;
  }
}

TEST(RowSnapshotTest, KeepsEachRowOnceAndFreesWhatWasRead) {
  Arrays arrays(10000);
  KeptBytes kept(kNoBound, KeptBytes::Seconds(60));
  RowSnapshot snapshot(10000, Arrays::RowBytes(), &kept);
  const std::vector<int64_t> rows = {5, 5, 9999, 5};
  EXPECT_EQ(snapshot.Keep(arrays.Data(), rows.data(), 0, 4), 4);
  const int64_t peak = kept.peak();
  EXPECT_GE(peak, 16 * 2);
  snapshot.Keep(arrays.Data(), rows.data(), 0, 4);
  EXPECT_EQ(kept.peak(), peak);
  ReadRows read(10000);
  read.Next(&snapshot, arrays, 9000);
  snapshot.Keep(arrays.Data(), rows.data(), 0, 4);  // one of them was read
  EXPECT_EQ(kept.peak(), peak);
  read.Next(&snapshot, arrays, 1000);
  snapshot.Keep(arrays.Data(), rows.data(), 0, 4);
  ASSERT_TRUE(kept.TryAdd(kNoBound));  // nothing else is kept
  EXPECT_EQ(kept.peak(), kNoBound);
}

TEST(RowSnapshotTest, EndsEarlyWhereThereIsNoRoom) {
  Arrays arrays(10000);
  KeptBytes kept(1 << 14, KeptBytes::Seconds(60));
  RowSnapshot snapshot(10000, Arrays::RowBytes(), &kept);
  const int64_t end = snapshot.Keep<int64_t>(arrays.Data(), nullptr, 0, 10000);
  EXPECT_GT(end, (1 << 14) / 16 / 3);
  EXPECT_LT(end, (1 << 14) / 16);
  EXPECT_LE(kept.peak(), 1 << 14);
  EXPECT_EQ(snapshot.Keep<int64_t>(arrays.Data(), nullptr, end, 10000), end);
  ReadRows read(10000);
  read.Next(&snapshot, arrays, 10000);
  EXPECT_EQ(snapshot.Keep<int64_t>(arrays.Data(), nullptr, end, 10000), 10000);
}

TEST(RowSnapshotTest, WhatIsAbandonedKeepsNothing) {
  Arrays arrays(100);
  KeptBytes kept(16, KeptBytes::Seconds(60));
  RowSnapshot snapshot(100, Arrays::RowBytes(), &kept);
  const int64_t row = 3;
  snapshot.Keep(arrays.Data(), &row, 0, 1);
  const int64_t peak = kept.peak();
  snapshot.Abandon();
  EXPECT_TRUE(snapshot.IsRead());
  const int64_t other = 4;
  EXPECT_EQ(snapshot.Keep(arrays.Data(), &other, 0, 1), 1);
  EXPECT_EQ(kept.peak(), peak);
  EXPECT_TRUE(kept.WaitForRoom(16, Never));
}

TEST(RowSnapshotTest, WritersOfDistantRowsDoNotWaitForEachOther) {
  Arrays arrays(10000);
  KeptBytes kept(kNoBound, KeptBytes::Seconds(60));
  RowSnapshot snapshot(10000, Arrays::RowBytes(), &kept);
  const auto keep = [&](int64_t row) {
    return std::async(std::launch::async,
                      [&, row] { snapshot.Keep(arrays.Data(), &row, 0, 1); });
  };
  Mutex& updating = RowLocks::Global().Of(arrays.table.data(), 0);
  int64_t distant = 9999;
  while (&RowLocks::Global().Of(arrays.table.data(), distant) == &updating) {
    --distant;
  }
  std::future<void> waits;
  std::future<void> passes;
  {
    const MutexLock lock(updating);
    waits = keep(0);
    // It has room then, and waits for the row.
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (kept.peak() == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
    passes = keep(distant);
    EXPECT_EQ(passes.wait_for(kDeadline), std::future_status::ready);
    EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)),
              std::future_status::timeout);
  }
}

TEST(RowSnapshotTest, WritersAndAReaderAtOnce) {
  constexpr int64_t kRows = 50000;
  Arrays arrays(kRows);
  const Arrays before = arrays;
  KeptBytes kept(1 << 14, KeptBytes::Seconds(600));
  RowSnapshot snapshot(kRows, Arrays::RowBytes(), &kept);
  std::atomic<bool> over{false};
  const auto write = [&](int seed) {
    std::mt19937 random(seed);
    while (!over) {
      std::vector<int64_t> rows(500);
      for (int64_t& row : rows) {
        row = random() % kRows;
      }
      for (int64_t kept_rows = 0; kept_rows < 500;) {
        ASSERT_TRUE(kept.WaitForRoom(snapshot.most_bytes(), Never));
        kept_rows = snapshot.Keep(arrays.Data(), rows.data(), kept_rows, 500);
      }
      for (const int64_t row : rows) {
        // This is how an update that shares the variables' locks does it.
        const MutexLock stripe(RowLocks::Global().Of(arrays.table.data(), row));
        arrays.Overwrite(row, 1);
      }
    }
  };
  std::thread one(write, 1);
  std::thread other(write, 2);
  ReadRows read(kRows);
  read.All(&snapshot, arrays);
  over = true;
  kept.Close();
  one.join();
  other.join();
  EXPECT_EQ(read.table, before.table);
  EXPECT_EQ(read.slot, before.slot);
  EXPECT_LE(kept.peak(), 1 << 14);
}

TEST(RowSnapshotTest, RowsWhoseWriterSaysNothingAreOfOneUpdate) {
  constexpr int64_t kRows = 20000;
  Arrays arrays(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    arrays.Overwrite(row, 0);
  }
  KeptBytes kept(1 << 14, KeptBytes::Seconds(600));
  RowSnapshot snapshot(kRows, Arrays::RowBytes(), &kept);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (int32_t update = 1; !over; ++update) {
      for (int64_t row = 0; row < kRows; ++row) {
        const MutexLock stripe(RowLocks::Global().Of(arrays.table.data(), row));
        arrays.Overwrite(row, update);
      }
    }
  });
  ReadRows read(kRows);
  read.All(&snapshot, arrays);
  over = true;
  writer.join();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < Arrays::kTableWidth; ++k) {
      ASSERT_EQ(read.table[row * Arrays::kTableWidth + k], read.slot[row]);
    }
  }
}

}  // namespace
}  // namespace tf_syncrep
