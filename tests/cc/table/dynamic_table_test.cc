// DynamicTable behaves like a std::unordered_map and a set of free rows,
// whatever the order of calls; on many threads nothing is lost or given twice.

#include "tf_syncrep/cc/lib/table/dynamic_table.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/table/key_segment.h"

namespace tf_syncrep {
namespace {

using Order = DynamicTable::Order;

// The columns of a part, and calls with fewer arguments.
class TestTable {
 public:
  explicit TestTable(int64_t capacity, int min_count = 1, int64_t first_row = 0)
      : keys_(first_row + capacity),
        uses_(first_row + capacity),
        columns_(keys_.data(), uses_.data()),
        table_({first_row, capacity, min_count}) {}

  std::vector<int32_t> Find(const std::vector<int64_t>& keys) {
    std::vector<int32_t> rows(keys.size());
    ThreadSharder sharder(1);
    bool has_memory = false;
    table_.Find(columns_, keys.data(), static_cast<int64_t>(keys.size()),
                rows.data(), sharder, &has_memory);
    EXPECT_TRUE(has_memory);
    return rows;
  }

  // Uses keys as a training step does.
  std::vector<int32_t> Use(const std::vector<int64_t>& keys, int32_t clock,
                           int num_threads = 1) {
    std::vector<int32_t> rows(keys.size());
    ThreadSharder sharder(num_threads);
    bool has_memory = false;
    table_.FindAndUse(columns_, clock, keys.data(),
                      static_cast<int64_t>(keys.size()), rows.data(), sharder,
                      &has_memory);
    EXPECT_TRUE(has_memory);
    std::vector<int64_t> new_keys;
    std::vector<int64_t> places;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (rows[i] == DynamicTable::kAdmitted) {
        new_keys.push_back(keys[i]);
        places.push_back(static_cast<int64_t>(i));
        rows[i] = DynamicTable::kNoRow;
      }
    }
    std::vector<int32_t> free_rows(new_keys.size());
    std::vector<int32_t> new_rows(new_keys.size());
    const int64_t taken = table_.TakeFree(static_cast<int64_t>(new_keys.size()),
                                          free_rows.data());
    EXPECT_GE(taken, 0);
    table_.Add(columns_, keys_.data(), new_keys.data(), taken, {clock, 1},
               free_rows.data(), new_rows.data(), sharder, &has_memory);
    EXPECT_TRUE(has_memory);
    for (int64_t i = 0; i < taken; ++i) {
      rows[places[i]] = new_rows[i];
    }
    return rows;
  }

  int64_t Maintain(int32_t clock, int64_t unused_for, Order order) {
    bool has_memory = false;
    const Array<int32_t> rested = table_.TakeResting(&has_memory);
    EXPECT_TRUE(has_memory);
    table_.Free(columns_, keys_.data(), rested.data(), rested.size());
    DynamicTable::Eviction eviction;
    EXPECT_TRUE(
        table_.PlanEviction(columns_, clock, unused_for, order, &eviction));
    int32_t rows[7];
    int64_t num = 0;
    for (int64_t from = table_.options().first_row; from < table_.end_row();) {
      const int64_t size = table_.Collect(columns_, &eviction, &from, 7, rows);
      num += table_.Evict(columns_, keys_.data(), eviction, rows, size);
    }
    return num;
  }

  DynamicTable::BuildStatus Build(int64_t* bad_row) {
    ThreadSharder sharder(3);
    return table_.Build(columns_, sharder, bad_row);
  }

  DynamicTable& table() { return table_; }
  const TableColumns& columns() const { return columns_; }
  std::vector<int64_t>& keys() { return keys_; }
  RowUse use(int64_t row) const { return columns_.use(row); }
  void set_use(int64_t row, RowUse use) { columns_.set_use(row, use); }

 private:
  std::vector<int64_t> keys_;
  std::vector<uint64_t> uses_;
  TableColumns columns_;
  DynamicTable table_;
};

// A plain table with the same behaviour.
class Model {
 public:
  explicit Model(int64_t capacity) : capacity_(capacity) {}

  struct Row {
    int32_t number;
    RowUse use;
  };

  void Use(const std::vector<int64_t>& keys, const std::vector<int32_t>& rows,
           int32_t clock) {
    const int64_t num_free =
        capacity_ - static_cast<int64_t>(rows_.size() + resting_.size());
    int64_t num_new = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      auto found = rows_.find(keys[i]);
      if (found != rows_.end()) {
        ASSERT_EQ(rows[i], found->second.number);
        found->second.use = {clock, found->second.use.count + 1};
      } else if (num_new++ < num_free) {
        ASSERT_TRUE(taken_.insert(rows[i]).second) << "row " << rows[i];
        rows_[keys[i]] = {rows[i], {clock, 1}};
      } else {
        ASSERT_EQ(rows[i], DynamicTable::kNoRow);
      }
    }
  }

  int64_t Maintain(int32_t clock, int64_t unused_for, Order order) {
    for (const int32_t row : resting_) {
      taken_.erase(row);
    }
    resting_.clear();
    std::vector<std::pair<std::pair<uint64_t, int32_t>, int64_t>> left;
    std::vector<int64_t> evicted;
    for (const auto& [key, row] : rows_) {
      if (unused_for > 0 && clock - row.use.last_use > unused_for) {
        evicted.push_back(key);
      } else {
        const auto last_use = static_cast<uint64_t>(row.use.last_use);
        const auto count = static_cast<uint64_t>(row.use.count);
        left.push_back({{order == Order::kLeastRecent ? last_use << 32 | count
                                                      : count << 32 | last_use,
                         row.number},
                        key});
      }
    }
    const auto num_left = static_cast<int64_t>(left.size());
    if (order != Order::kNone && num_left * 20 > capacity_ * 19) {
      std::sort(left.begin(), left.end());
      for (int64_t i = 0; i < num_left - capacity_ * 9 / 10; ++i) {
        evicted.push_back(left[i].second);
      }
    }
    for (const int64_t key : evicted) {
      resting_.push_back(rows_[key].number);
      rows_.erase(key);
    }
    return static_cast<int64_t>(evicted.size());
  }

  void Check(TestTable* table) const {
    std::vector<int64_t> keys;
    std::vector<int32_t> expected;
    for (const auto& [key, row] : rows_) {
      keys.push_back(key);
      expected.push_back(row.number);
      ASSERT_EQ(table->keys()[row.number], key);
      ASSERT_EQ(table->use(row.number).last_use, row.use.last_use);
      ASSERT_EQ(table->use(row.number).count, row.use.count);
    }
    ASSERT_EQ(table->Find(keys), expected);
    for (const int32_t row : resting_) {
      ASSERT_TRUE(table->use(row).rests());
      ASSERT_EQ(table->keys()[row], 0);
    }
    ASSERT_EQ(table->table().counts().in_use,
              static_cast<int64_t>(rows_.size()));
  }

  const std::unordered_map<int64_t, Row>& rows() const { return rows_; }

 private:
  const int64_t capacity_;
  std::unordered_map<int64_t, Row> rows_;
  std::set<int32_t> taken_;  // rows that have a key, or rest
  std::vector<int32_t> resting_;
};

// Dense keys, sparse ones, and those at the ends of the range.
std::vector<int64_t> DrawKeys(std::mt19937_64& random, int64_t most,
                              int64_t range) {
  std::set<int64_t> keys;
  const auto size = static_cast<int64_t>(random() % (most + 1));
  for (int64_t i = 0; i < size; ++i) {
    const auto number = static_cast<int64_t>(random() % range);
    switch (random() % 8) {
      case 0:
        keys.insert(std::numeric_limits<int64_t>::max() - number);
        break;
      case 1:
        keys.insert(std::numeric_limits<int64_t>::min() + number);
        break;
      case 2:
        keys.insert(number << 32);
        break;
      default:
        keys.insert(number - range / 2);
    }
  }
  std::vector<int64_t> drawn(keys.begin(), keys.end());
  std::shuffle(drawn.begin(), drawn.end(), random);
  return drawn;
}

class DynamicTableModelTest : public testing::TestWithParam<int> {};

TEST_P(DynamicTableModelTest, DoesWhatAMapDoes) {
  std::mt19937_64 random(GetParam());
  const int64_t capacity =
      std::vector<int64_t>{1, 10, 300, 5000, 100000}[GetParam() % 5];
  const auto order = static_cast<Order>(random() % 3);
  TestTable table(capacity);
  Model model(capacity);
  int32_t clock = 0;
  const int64_t most = std::max<int64_t>(4, capacity / 4);
  for (int step = 0; step < 60; ++step) {
    const std::vector<int64_t> keys = DrawKeys(random, most, 2 * capacity);
    const std::vector<int32_t> before = table.Find(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = model.rows().find(keys[i]);
      ASSERT_EQ(before[i], found == model.rows().end() ? DynamicTable::kNoRow
                                                       : found->second.number);
    }
    const int num_threads = 1 + static_cast<int>(random() % 3);
    ASSERT_NO_FATAL_FAILURE(
        model.Use(keys, table.Use(keys, clock, num_threads), clock));
    clock += static_cast<int32_t>(random() % 2);
    if (random() % 8 == 0) {
      const int64_t unused_for =
          random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 10);
      ASSERT_EQ(table.Maintain(clock, unused_for, order),
                model.Maintain(clock, unused_for, order));
    }
    if (random() % 16 == 0) {
      int64_t bad_row;
      ASSERT_EQ(table.Build(&bad_row), DynamicTable::BuildStatus::kOk);
    }
    if (step % 10 == 9) {
      ASSERT_NO_FATAL_FAILURE(model.Check(&table));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DynamicTableModelTest, testing::Range(0, 15));

TEST(DynamicTableTest, KeepsKeysApartWhoseHashesAreAlike) {
  // All keys have the same stripe, segment, bucket and tag, as in a small
  // table.
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < 60; ++key) {
    if (KeyBucket(HashKey(key), 64) == 1 && KeyTag(HashKey(key)) == 7) {
      keys.push_back(key);
    }
  }
  TestTable table(100);
  const std::vector<int32_t> rows = table.Use(keys, 0);
  EXPECT_EQ(table.Find(keys), rows);
  EXPECT_EQ(std::set<int32_t>(rows.begin(), rows.end()).size(), 60u);
}

TEST(KeySegmentTest, FindsKeysBehindABucketThatVeryManyWentPast) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < 300; ++key) {
    if (KeyBucket(HashKey(key), 1024) == 0) {
      keys.push_back(key);
    }
  }
  KeySegment segment(0);
  const auto size = static_cast<int32_t>(keys.size());
  for (int32_t row = 0; row < size; ++row) {
    ASSERT_TRUE(segment.Insert(HashKey(keys[row]), row, keys.data()));
  }
  for (int32_t row = 0; row < size; ++row) {
    for (int32_t other = row; other < size; ++other) {
      ASSERT_EQ(segment.Find(HashKey(keys[other]), keys[other], keys.data()),
                other);
    }
    ASSERT_TRUE(segment.Erase(HashKey(keys[row]), row));
  }
  EXPECT_EQ(segment.size(), 0);
}

TEST(DynamicTableTest, RowsAreThoseOfTheTable) {
  TestTable table(3, /*min_count=*/1, /*first_row=*/10);
  std::vector<int32_t> rows = table.Use({1, 2, 3, 4}, 0);
  EXPECT_EQ(rows, (std::vector<int32_t>{10, 11, 12, -1}));
  EXPECT_TRUE(table.table().has_row(10));
  EXPECT_FALSE(table.table().has_row(9));
  EXPECT_FALSE(table.table().has_row(13));
}

TEST(DynamicTableTest, FreshRowsAreThoseThatWereNeverUsed) {
  TestTable table(3);
  EXPECT_EQ(table.table().NumFresh(2), 2);
  table.Use({1, 2}, 0);
  EXPECT_EQ(table.table().NumFresh(2), 1);  // there is room for one
  const std::vector<int32_t> taken = {0, 1};
  table.table().GiveBack(taken.data(), 2, table.table().build());
  EXPECT_EQ(table.table().NumFresh(2), 0);
  EXPECT_EQ(table.table().NumFresh(3), 1);
  EXPECT_EQ(table.table().NumFresh(9), 1);
}

TEST(DynamicTableTest, RowsThatWereTakenBeforeABuildAreNotGivenBack) {
  TestTable table(4);
  table.Use({1, 2}, 0);
  EXPECT_EQ(table.Maintain(9, /*unused_for=*/1, Order::kNone), 2);
  const int64_t before = table.table().build();
  bool has_memory = false;
  const Array<int32_t> rested = table.table().TakeResting(&has_memory);
  ASSERT_EQ(rested.size(), 2);
  int32_t taken[2];
  ASSERT_EQ(table.table().TakeFree(2, taken), 2);
  int64_t bad_row;
  ASSERT_EQ(table.Build(&bad_row), DynamicTable::BuildStatus::kOk);
  EXPECT_EQ(table.Use({3, 4}, 9), (std::vector<int32_t>{2, 3}));
  table.table().GiveBack(taken, 2, before);
  table.table().PutBackResting(rested.data(), 2, before);
  EXPECT_EQ(table.Use({5}, 9)[0], DynamicTable::kNoRow);  // both rows rest
  EXPECT_EQ(table.Maintain(9, 0, Order::kNone), 0);
  EXPECT_EQ(table.Use({5, 6, 7}, 9), (std::vector<int32_t>{0, 1, -1}));
}

TEST(DynamicTableTest, ReleasedRowsAreOfOneKeyAndRestUntilTheSecondTime) {
  TestTable table(10);
  const std::vector<int64_t> keys = {5, 6, 7};
  std::vector<int32_t> rows = table.Use(keys, 1);
  rows[1] = rows[2];  // Key 6 has another row by now,
  const std::vector<int64_t> all = {5, 6, 9};
  rows[2] = DynamicTable::kNoRow;  // and key 9 has none.
  const auto release = [&] {
    return table.table().Release(table.columns(), table.keys().data(),
                                 all.data(), rows.data(), 3);
  };
  EXPECT_EQ(release(), 1);
  EXPECT_EQ(release(), 0);
  EXPECT_TRUE(table.use(rows[0]).rests());
  EXPECT_EQ(table.table().counts().in_use, 2);
  EXPECT_EQ(table.table().counts().evicted, 0);
  bool has_memory;
  EXPECT_EQ(table.table().TakeResting(&has_memory).size(), 0);
  EXPECT_EQ(table.table().TakeResting(&has_memory).size(), 1);
  EXPECT_EQ(table.table().TakeResting(&has_memory).size(), 0);
}

TEST(DynamicTableTest, ReadsKeyAndUseOfOneMoment) {
  constexpr int64_t kRows = 100;
  TestTable table(kRows);
  std::atomic<bool> ends{false};
  std::thread reader([&] {
    while (!ends) {
      for (int64_t row = 0; row < kRows; ++row) {
        int64_t key;
        RowUse use;
        if (table.table().Read(table.columns(), row, &key, &use)) {
          // The key tells at which time it is used, and is never 0.
          ASSERT_EQ(key / 1000, use.last_use + 1) << key;
          ASSERT_GT(use.count, 0);
        }
      }
    }
  });
  int64_t num_evicted = 0;
  for (int32_t clock = 0; clock < 2000; ++clock) {
    std::vector<int64_t> keys(kRows / 2);
    std::iota(keys.begin(), keys.end(), 1000 * (clock + 1));
    table.Use(keys, clock);
    num_evicted += table.Maintain(clock, /*unused_for=*/1, Order::kNone);
  }
  ends = true;
  reader.join();
  EXPECT_GT(num_evicted, 1000);
}

// Rows without a key have key 0 in the column.
TEST(DynamicTableTest, NoGradientOfKey0ReachesARowThatIsJustGettingAnotherKey) {
  constexpr int32_t kRows = 1 << 18;
  TestTable table(kRows);
  std::atomic<int32_t> next{0};
  int64_t num_kept = 0;
  std::thread reader([&] {
    int32_t row;
    while ((row = next) < kRows) {
      const int64_t key = 0;
      int64_t bad;
      int32_t kept;
      const int64_t num = table.table().FindKept(table.columns(), &key, &row, 0,
                                                 1, &kept, &bad);
      ASSERT_GE(num, 0);
      num_kept += num;
    }
  });
  for (; next < kRows; ++next) {
    ASSERT_EQ(table.Use({next + 1}, 1)[0], next);
  }
  reader.join();
  EXPECT_EQ(num_kept, 0);
}

TEST(DynamicTableTest, AdmitsKeysThatWereSeenOftenEnough) {
  TestTable table(1000, /*min_count=*/3);
  EXPECT_EQ(table.Use({5}, 0)[0], DynamicTable::kNoRow);
  EXPECT_EQ(table.Use({5, 6}, 0), (std::vector<int32_t>{-1, -1}));
  EXPECT_EQ(table.Find({5})[0], DynamicTable::kNoRow);
  EXPECT_EQ(table.Use({6, 5}, 0), (std::vector<int32_t>{-1, 0}));
}

TEST(DynamicTableTest, FewKeysAreAdmittedTooEarlyAndThoseSeenAgainAreAdmitted) {
  constexpr int64_t kCapacity = 100000;
  TestTable table(kCapacity, /*min_count=*/2);
  int64_t num_early = 0;
  int64_t num_late = 0;
  int64_t num_seen = 0;
  // A table that is full admits none.
  for (; table.table().counts().in_use < kCapacity - 1000; num_seen += 1000) {
    std::vector<int64_t> keys(1000);
    for (int64_t i = 0; i < 1000; ++i) {
      keys[i] = num_seen + i;
    }
    for (const int32_t row : table.Use(keys, 0)) {
      num_early += row >= 0;
    }
    keys.resize(10);
    for (const int32_t row : table.Use(keys, 0)) {
      num_late += row < 0;
    }
  }
  EXPECT_LT(num_early, num_seen / 10);
  EXPECT_LT(num_late, num_seen / 100 / 20);
}

TEST(DynamicTableTest, UsesAreSettledIfTheyAreNewOrStillToCome) {
  TestTable table(7);
  table.Use({10, 11, 12, 13, 14, 15}, 0);
  const int32_t last_uses[] = {49, 50, 60, 70, 101, 102};
  for (int row = 0; row < 6; ++row) {
    table.set_use(row, {last_uses[row], 3});
  }
  table.table().Settle(table.columns(), 0, 7, /*from=*/50, /*to=*/60,
                       /*until=*/100);
  const int32_t expected[] = {49, 100, 100, 70, 101, 100};
  for (int row = 0; row < 6; ++row) {
    EXPECT_EQ(table.use(row).last_use, expected[row]) << row;
    EXPECT_EQ(table.use(row).count, 3);
  }
  EXPECT_EQ(table.use(6).count, 0);
  // The latest time that there is.
  table.set_use(0, {std::numeric_limits<int32_t>::max(), 1});
  table.table().Settle(table.columns(), 0, 7, /*from=*/50, /*to=*/60,
                       std::numeric_limits<int32_t>::max());
  EXPECT_EQ(table.use(0).last_use, std::numeric_limits<int32_t>::max());
}

TEST(DynamicTableTest, LastUsesBeforeATimeAreMoved) {
  TestTable table(7);
  table.Use({10, 11, 12, 13}, 0);
  const int32_t last_uses[] = {0, 49, 50, 60};
  for (int row = 0; row < 4; ++row) {
    table.set_use(row, {last_uses[row], 3});
  }
  table.set_use(3, {RowUse::kRests, 0});
  table.table().MoveLastUses(table.columns(), /*before=*/50, /*by=*/7);
  const int32_t expected[] = {7, 56, 50, RowUse::kRests};
  for (int row = 0; row < 4; ++row) {
    EXPECT_EQ(table.use(row).last_use, expected[row]) << row;
    EXPECT_EQ(table.use(row).count, row < 3 ? 3 : 0);
  }
  EXPECT_EQ(table.use(4).last_use, 0);
}

TEST(DynamicTableTest, ColumnsOfNoTableAreNotBuilt) {
  TestTable table(4);
  int64_t bad_row = -1;
  for (const auto& [use, status] :
       {std::pair(RowUse{0, -1}, DynamicTable::BuildStatus::kBadUse),
        {RowUse{-1, 1}, DynamicTable::BuildStatus::kBadUse},
        {RowUse{3, 0}, DynamicTable::BuildStatus::kBadUse},
        {RowUse{3, 1}, DynamicTable::BuildStatus::kSecondRow},
        {RowUse{-1, 0}, DynamicTable::BuildStatus::kOk},
        {RowUse{0, 0}, DynamicTable::BuildStatus::kOk}}) {
    table.keys()[0] = table.keys()[2] = 9;
    table.set_use(0, {5, 1});
    table.set_use(2, use);
    EXPECT_EQ(table.Build(&bad_row), status);
    const bool is_built = status == DynamicTable::BuildStatus::kOk;
    EXPECT_EQ(table.Find({9})[0], is_built ? 0 : -1);
    EXPECT_EQ(table.table().MostRecentUse(table.columns()), is_built ? 5 : 0);
    if (!is_built) {
      EXPECT_EQ(bad_row, 2);
    }
  }
}

TEST(DynamicTableTest, ARowTakesLessThanTwelveBytes) {
  constexpr int64_t kRows = 1 << 20;
  TestTable table(kRows);
  int64_t next = 0;
  for (int64_t rows = 1 << 12; rows <= kRows; rows += rows / 8) {
    std::vector<int64_t> keys;
    for (; next < rows; ++next) {
      keys.push_back(next * 1000003);
    }
    table.Use(keys, 0);
    if (rows > 1 << 16) {
      EXPECT_LT(table.table().counts().bytes, 12 * rows) << rows << " rows";
    }
  }
  int64_t bad_row;
  ASSERT_EQ(table.Build(&bad_row), DynamicTable::BuildStatus::kOk);
  EXPECT_LT(table.table().counts().bytes, 12 * next);
}

// Threads look up, add and evict at the same time. No key may have two rows, no
// row two keys, and the keys that remain must be found.
class DynamicTableThreadsTest : public testing::TestWithParam<int64_t> {};

TEST_P(DynamicTableThreadsTest, SixteenLoseNothing) {
  constexpr int kThreads = 16;
  const int64_t capacity = GetParam();
  const int64_t num_keys = capacity * 3 / 2;
  TestTable table(capacity);
  std::atomic<int> num_running{kThreads - 1};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads - 1; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 200; ++i) {
        const std::vector<int64_t> keys = DrawKeys(random, 300, num_keys);
        if (t % 3 == 0) {
          table.Find(keys);
        } else {
          table.Use(keys, i);
        }
      }
      --num_running;
    });
  }
  threads.emplace_back([&] {
    for (int32_t i = 0; num_running > 0; ++i) {
      table.Maintain(i, /*unused_for=*/50, Order::kLeastRecent);
      table.table().counts();
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<int64_t> keys;
  std::vector<int32_t> rows;
  for (int64_t row = 0; row < capacity; ++row) {
    if (table.use(row).is_in_use()) {
      keys.push_back(table.keys()[row]);
      rows.push_back(static_cast<int32_t>(row));
    }
  }
  EXPECT_EQ(std::set<int64_t>(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_EQ(table.Find(keys), rows);
  const DynamicTable::Counts counts = table.table().counts();
  EXPECT_EQ(counts.in_use, static_cast<int64_t>(keys.size()));
  EXPECT_EQ(counts.admitted - counts.evicted, counts.in_use);
  // All other rows can still be used: none was lost.
  table.Maintain(0, 0, Order::kNone);
  std::vector<int64_t> others(capacity);
  for (int64_t i = 0; i < capacity; ++i) {
    others[i] = (int64_t{1} << 50) + i;
  }
  table.Use(others, 0);
  EXPECT_EQ(table.table().counts().in_use, capacity);
}

// Of one stripe, and of so many that a call has few keys for each.
INSTANTIATE_TEST_SUITE_P(Capacities, DynamicTableThreadsTest,
                         testing::Values(4000, 300000));

}  // namespace
}  // namespace tf_syncrep
