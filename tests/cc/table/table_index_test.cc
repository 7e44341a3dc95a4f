// The tables of a part have one clock, and one maintenance at a time.

#include "tf_syncrep/cc/lib/table/table_index.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/table/table_maintenance.h"

namespace tf_syncrep {
namespace {

class TableIndexTest : public testing::Test {
 protected:
  void Build() {
    ThreadSharder sharder(1);
    int64_t bad_table;
    int64_t bad_row;
    ASSERT_EQ(index_.Build({keys_.data(), uses_.data()}, sharder, &bad_table,
                           &bad_row),
              DynamicTable::BuildStatus::kOk);
  }

  static constexpr int64_t kRows = 4;
  std::vector<int64_t> keys_ = std::vector<int64_t>(kRows);
  std::vector<uint64_t> uses_ = std::vector<uint64_t>(kRows);
  TableIndex index_{
      {{"table", {0, kRows, 1}, InitialKind::kConstant, 0, 0, 0}}};
  const std::vector<TableMaintenance::Rules> rules_ = {
      {DynamicTable::Order::kNone, 0}};
};

TEST_F(TableIndexTest, HasOneMaintenanceAtATime) {
  Build();
  {
    const TableMaintenance first(&index_, rules_, 1);
    EXPECT_TRUE(first.has_begun());
    const TableMaintenance second(&index_, rules_, 7);
    EXPECT_FALSE(second.has_begun());
    EXPECT_EQ(index_.clock(), 2);
  }
  EXPECT_TRUE(TableMaintenance(&index_, rules_, 8).has_begun());
}

TEST_F(TableIndexTest, AMaintenanceOfAnEarlierBuildKeepsNoOtherOut) {
  Build();
  {
    TableMaintenance earlier(&index_, rules_, 1);
    Build();
    const TableMaintenance present(&index_, rules_, 1);
    EXPECT_TRUE(present.has_begun());
    EXPECT_EQ(earlier.GoOn({keys_.data(), uses_.data()}),
              TableMaintenance::Next::kAborted);
    EXPECT_FALSE(TableMaintenance(&index_, rules_, 1).has_begun());
  }
  EXPECT_TRUE(TableMaintenance(&index_, rules_, 1).has_begun());
}

TEST_F(TableIndexTest, ImportsDoNotSetTheClockBack) {
  std::atomic<bool> ends{false};
  std::thread imports([&] {
    while (!ends) {
      index_.SetForward(index_.clock() + 1);
    }
  });
  bool is_set_back = false;
  for (int32_t clock = 100; clock < 2'000'000'000 && !is_set_back;
       clock += 100) {
    index_.set_clock(clock);
    is_set_back = index_.clock() < clock;
  }
  ends = true;
  imports.join();
  EXPECT_FALSE(is_set_back);
}

TEST_F(TableIndexTest, UsesOfAnEarlierStateLeaveTheClockOfAMaintenance) {
  const TableColumns columns(keys_.data(), uses_.data());
  columns.set_use(0, {3, 1});
  Build();
  {
    const TableMaintenance maintenance(&index_, rules_, 8);
    index_.SetBack(columns);
    EXPECT_EQ(index_.clock(), 9);
    EXPECT_EQ(index_.former_clock(), 9);
  }
  index_.SetBack(columns);
  EXPECT_EQ(index_.clock(), 3);
}

}  // namespace
}  // namespace tf_syncrep
