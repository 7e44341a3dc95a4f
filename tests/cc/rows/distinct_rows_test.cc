// Compares DistinctRows with std::map, on any number of threads.

#include "tf_syncrep/cc/lib/rows/distinct_rows.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/rows/row_partition.h"

namespace tf_syncrep {
namespace {

using Status = DistinctRows::Status;

TEST(RowPartitionTest, RowsTakeTurnsOnTheShards) {
  for (const int64_t num_shards : {1, 2, 3, 7, 64}) {
    for (const int64_t num_rows :
         {int64_t{1}, int64_t{100}, int64_t{1} << 31, int64_t{1} << 40}) {
      const RowPartition partition = RowPartition::Modulo(num_rows, num_shards);
      ASSERT_EQ(partition.num_shards(), num_shards);
      std::mt19937_64 random(1);
      for (int i = 0; i < 1000; ++i) {
        const auto row = static_cast<int64_t>(random() % num_rows);
        const int64_t shard = row % num_shards;
        const int64_t key = partition.Key(row);
        ASSERT_EQ(key - partition.begin(shard), row / num_shards);
        ASSERT_LT(key, partition.begin(shard + 1));
      }
    }
  }
}

TEST(RowPartitionTest, RangesKeepTheirRows) {
  const RowPartition partition = RowPartition::Ranges({3, 0, 2});
  EXPECT_EQ(partition.num_rows(), 5);
  EXPECT_EQ(partition.Key(4), 4);
  EXPECT_EQ(partition.begin(1), 3);
  EXPECT_EQ(partition.begin(2), 3);
  EXPECT_EQ(partition.begin(3), 5);
}

struct Table {
  int64_t first_row;
  int64_t vocabulary_size;
};

// Ids of several features, half of which are int32, and the results for them.
class Batch {
 public:
  // There are few distinct ids if `spread` is small.
  Batch(const std::vector<Table>& tables, const std::vector<int64_t>& sizes,
        int64_t spread, uint64_t seed)
      : tables_(tables) {
    std::mt19937_64 random(seed);
    for (size_t f = 0; f < tables.size(); ++f) {
      const int64_t range = std::min(spread, tables[f].vocabulary_size);
      ids_.emplace_back();
      for (int64_t i = 0; i < sizes[f]; ++i) {
        ids_[f].push_back(static_cast<int64_t>(random() % range));
      }
      narrow_.emplace_back(ids_[f].begin(), ids_[f].end());
    }
  }

  std::vector<FeatureIds> features() const {
    std::vector<FeatureIds> features;
    for (size_t f = 0; f < ids_.size(); ++f) {
      const bool is_wide = f % 2 == 0;
      features.push_back({is_wide ? nullptr : narrow_[f].data(),
                          is_wide ? ids_[f].data() : nullptr,
                          static_cast<int64_t>(ids_[f].size()),
                          tables_[f].first_row, tables_[f].vocabulary_size});
    }
    return features;
  }

  void Check(const RowPartition& partition, int num_threads) const {
    ThreadSharder sharder(num_threads);
    DistinctRows distinct;
    BadId bad_id;
    ASSERT_EQ(distinct.Find(features(), partition, sharder, &bad_id),
              Status::kOk);
    std::map<int64_t, int64_t> places;  // by key
    for (size_t f = 0; f < ids_.size(); ++f) {
      for (const int64_t id : ids_[f]) {
        places[partition.Key(tables_[f].first_row + id)] = 0;
      }
    }
    int64_t place = 0;
    auto next = places.begin();
    for (int64_t shard = 0; shard < partition.num_shards(); ++shard) {
      std::vector<int64_t> rows(distinct.num_rows(shard));
      std::vector<int32_t> narrow(rows.size());
      distinct.WriteRows(partition, shard, rows.data());
      distinct.WriteRows(partition, shard, narrow.data());
      for (size_t i = 0; i < rows.size(); ++i, ++next) {
        ASSERT_NE(next, places.end());
        ASSERT_EQ(rows[i], next->first - partition.begin(shard));
        ASSERT_EQ(narrow[i], static_cast<int32_t>(rows[i]));
        next->second = place++;
      }
    }
    ASSERT_EQ(next, places.end());
    for (size_t f = 0; f < ids_.size(); ++f) {
      std::vector<int32_t> found(ids_[f].size());
      distinct.WritePlaces(static_cast<int64_t>(f), found.data());
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i],
                  places[partition.Key(tables_[f].first_row + ids_[f][i])]);
      }
    }
  }

 private:
  std::vector<Table> tables_;
  std::vector<std::vector<int64_t>> ids_;
  std::vector<std::vector<int32_t>> narrow_;
};

TEST(DistinctRowsTest, FindsEachRowOnceInTheOrderOfShards) {
  const std::vector<Table> tables = {
      {0, 1}, {1, 100000}, {100001, 7}, {1, 100000}, {100008, 50000}};
  const std::vector<int64_t> sizes = {3, 40000, 0, 20000, 90000};
  for (const int64_t spread : {1, 40, 100000}) {
    const Batch batch(tables, sizes, spread, 5);
    for (const int num_threads : {1, 3, 8}) {
      for (const int64_t num_shards : {1, 2, 5}) {
        batch.Check(RowPartition::Modulo(150008, num_shards), num_threads);
      }
      batch.Check(RowPartition::Ranges({2, 0, 100000, 50006}), num_threads);
    }
  }
}

TEST(DistinctRowsTest, RowsMayBeMoreThan32BitsCount) {
  const int64_t half = int64_t{1} << 33;
  const Batch batch({{0, half}, {half, half}}, {500, 0}, half, 7);
  batch.Check(RowPartition::Modulo(2 * half, 3), 2);
}

TEST(DistinctRowsTest, NoIdsHaveNoRows) {
  const Batch batch({{0, 5}}, {0}, 5, 1);
  batch.Check(RowPartition::Modulo(5, 2), 2);
}

TEST(DistinctRowsTest, NamesTheFirstIdThatIsInNoTable) {
  std::vector<int64_t> ids(100000, 4);
  std::vector<int32_t> others = {0, 1};
  ids[99000] = 5;
  ids[70000] = -1;
  for (const int num_threads : {1, 4}) {
    ThreadSharder sharder(num_threads);
    DistinctRows distinct;
    BadId bad_id;
    const std::vector<FeatureIds> features = {
        {others.data(), nullptr, 2, 0, 5}, {nullptr, ids.data(), 100000, 0, 5}};
    EXPECT_EQ(
        distinct.Find(features, RowPartition::Modulo(5, 1), sharder, &bad_id),
        Status::kBadId);
    EXPECT_EQ(bad_id.feature, 1);
    EXPECT_EQ(bad_id.position, 70000);
    EXPECT_EQ(bad_id.id, -1);
  }
}

TEST(DistinctRowsTest, AnIdThatChangesMeanwhileIsNoRowOfSomebodyElse) {
  std::vector<int32_t> ids(100000, 1);
  std::atomic<bool> is_over{false};
  std::thread owner([&] {
    for (int32_t id = 0; !is_over; id = INT32_MAX - id) {
      __atomic_store_n(&ids.back(), id, __ATOMIC_RELAXED);
    }
  });
  for (int i = 0; i < 100; ++i) {
    ThreadSharder sharder(2);
    DistinctRows distinct;
    BadId bad_id;
    if (distinct.Find({{ids.data(), nullptr, 100000, 0, 2}},
                      RowPartition::Modulo(2, 1), sharder,
                      &bad_id) == Status::kOk) {
      EXPECT_LE(distinct.num_rows(0), 2);
    } else {
      EXPECT_EQ(bad_id.position, 99999);
    }
  }
  is_over = true;
  owner.join();
}

}  // namespace
}  // namespace tf_syncrep
