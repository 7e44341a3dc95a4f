// RowSnapshot: what is read is what was, whatever is overwritten meanwhile.

#include "tf_syncrep/cc/lib/rows/row_snapshot.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

constexpr int64_t kNoBound = int64_t{1} << 40;

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

// What is read of a snapshot, put together again.
struct ReadRows {
  explicit ReadRows(int64_t rows)
      : table(rows * Arrays::kTableWidth), slot(rows * Arrays::kSlotWidth) {}

  void Next(RowSnapshot* snapshot, const Arrays& arrays, int64_t num) {
    snapshot->Read(
        arrays.Data(), num,
        {reinterpret_cast<char*>(table.data() + next * Arrays::kTableWidth),
         reinterpret_cast<char*>(slot.data() + next * Arrays::kSlotWidth)});
    next += num;
  }

  int64_t next = 0;
  std::vector<int32_t> table;
  std::vector<int32_t> slot;
};

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
        some = {-1, rows, rows + 5};  // there are no such rows
        snapshot.Keep(arrays.Data(), some.data(), 3);
      } else if (random() % 40 == 0) {
        int64_t begin = 0;
        while (begin < rows) {
          const int64_t end =
              snapshot.KeepRange(arrays.Data(), begin, rows, 50);
          for (int64_t row = begin; row < end; ++row) {
            arrays.Overwrite(row, -7);
          }
          begin = end;
        }
      } else {
        snapshot.Keep(arrays.Data(), some.data(),
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
  KeptBytes kept(16 * 3, KeptBytes::Seconds(60));
  RowSnapshot snapshot(10000, Arrays::RowBytes(), &kept);
  const std::vector<int64_t> rows = {5, 5, 9999, 5};
  snapshot.Keep(arrays.Data(), rows.data(), 4);
  snapshot.Keep(arrays.Data(), rows.data(), 4);
  EXPECT_EQ(kept.peak(), 16 * 2);
  ReadRows read(10000);
  read.Next(&snapshot, arrays, 9000);
  snapshot.Keep(arrays.Data(), rows.data(), 4);  // one of them was read
  EXPECT_EQ(kept.peak(), 16 * 2);
  read.Next(&snapshot, arrays, 1000);
  snapshot.Keep(arrays.Data(), rows.data(), 4);
  EXPECT_TRUE(kept.WaitForRoom(Never));
  kept.Add(16 * 3);  // nothing else is kept
  EXPECT_EQ(kept.peak(), 16 * 3);
}

TEST(RowSnapshotTest, WhatIsAbandonedKeepsNothing) {
  Arrays arrays(100);
  KeptBytes kept(16, KeptBytes::Seconds(60));
  RowSnapshot snapshot(100, Arrays::RowBytes(), &kept);
  const int64_t row = 3;
  snapshot.Keep(arrays.Data(), &row, 1);
  snapshot.Abandon();
  EXPECT_TRUE(snapshot.IsRead());
  const int64_t other = 4;
  snapshot.Keep(arrays.Data(), &other, 1);
  EXPECT_EQ(kept.peak(), 16);
  EXPECT_TRUE(kept.WaitForRoom(Never));
}

TEST(RowSnapshotTest, WritersAndAReaderAtOnce) {
  constexpr int64_t kRows = 50000;
  Arrays arrays(kRows);
  const Arrays before = arrays;
  KeptBytes kept(1 << 14, KeptBytes::Seconds(600));
  RowSnapshot snapshot(kRows, Arrays::RowBytes(), &kept);
  std::shared_mutex variables;  // as those of TensorFlow's variables
  std::atomic<bool> over{false};
  std::thread writer([&] {
    std::mt19937 random(1);
    while (!over) {
      std::vector<int64_t> rows(500);
      for (int64_t& row : rows) {
        row = random() % kRows;
      }
      ASSERT_TRUE(kept.WaitForRoom(Never));
      {
        const std::shared_lock<std::shared_mutex> lock(variables);
        snapshot.Keep(arrays.Data(), rows.data(), 500);
      }
      const std::lock_guard<std::shared_mutex> lock(variables);
      for (const int64_t row : rows) {
        arrays.Overwrite(row, 1);
      }
    }
  });
  ReadRows read(kRows);
  while (read.next < kRows) {
    const std::lock_guard<std::shared_mutex> lock(variables);
    read.Next(&snapshot, arrays, std::min<int64_t>(100, kRows - read.next));
  }
  over = true;
  kept.Close();
  writer.join();
  EXPECT_EQ(read.table, before.table);
  EXPECT_EQ(read.slot, before.slot);
  EXPECT_LE(kept.peak(), (1 << 14) + 500 * 16);
}

}  // namespace
}  // namespace tf_syncrep
