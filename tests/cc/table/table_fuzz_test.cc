// A table that grows gets what may come over the wire: any keys, in any order,
// looked up, added and evicted; and columns that hold anything, as a restore of
// damaged files may leave them. No key may have two rows, no row two keys, and
// each key that is there must be found.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/fuzz_input.h"
#include "tests/cc/inline_sharder.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/table/key_requests.h"

namespace tf_syncrep {
namespace {

class TableFuzz {
 public:
  explicit TableFuzz(FuzzInput* input)
      : input_(*input),
        first_row_(input_.Pick(3)),
        capacity_(1 + input_.Pick(256)),
        keys_(first_row_ + capacity_),
        uses_(first_row_ + capacity_),
        columns_(keys_.data(), uses_.data()),
        table_({first_row_, capacity_, 1 + input_.Pick(3)}) {}

  void Run() {
    while (!input_.is_over() && !testing::Test::HasFailure()) {
      Call();
      Check();
    }
  }

 private:
  int64_t Key() {
    return input_.Pick(2) == 0 ? input_.Number() : input_.Pick(256);
  }

  void Use() {
    std::vector<int64_t> keys;
    for (int i = input_.Pick(64); i >= 0; --i) {
      keys.push_back(Key());
    }
    // Requests are made as workers make them; but anybody may send a key twice.
    InlineSharder sharder(3);
    if (input_.Pick(4) != 0) {
      KeyRequests requests;
      EXPECT_TRUE(requests.Find(
          {{nullptr, keys.data(), static_cast<int64_t>(keys.size()), 0}}, 1, 1,
          sharder))
          << "there is memory";
      std::vector<int64_t> request(requests.request_size(0));
      requests.WriteRequest(0, request.data());
      EXPECT_EQ(request[0] + 1, static_cast<int64_t>(request.size()))
          << "a request says how many keys it has";
      keys.assign(request.begin() + 1, request.end());
      std::sort(keys.begin(), keys.end());
      EXPECT_TRUE(std::adjacent_find(keys.begin(), keys.end()) == keys.end())
          << "a request has each key once";
    }
    const auto size = static_cast<int64_t>(keys.size());
    std::vector<int32_t> rows(size);
    bool has_memory;
    table_.FindAndUse(columns_, clock_, keys.data(), size, rows.data(), sharder,
                      &has_memory);
    std::vector<int64_t> new_keys;
    for (int64_t i = 0; i < size; ++i) {
      if (rows[i] == DynamicTable::kAdmitted) {
        new_keys.push_back(keys[i]);
      }
    }
    std::vector<int32_t> free_rows(new_keys.size());
    std::vector<int32_t> new_rows(new_keys.size());
    const int64_t taken = table_.TakeFree(static_cast<int64_t>(new_keys.size()),
                                          free_rows.data());
    if (input_.Pick(8) == 0) {
      table_.GiveBack(free_rows.data(), taken, table_.build());
      return;
    }
    table_.Add(columns_, keys_.data(), new_keys.data(), taken, {clock_, 1},
               free_rows.data(), new_rows.data(), sharder, &has_memory);
    for (int64_t i = 0; i < taken; ++i) {
      EXPECT_TRUE(table_.has_row(new_rows[i]) &&
                  keys_[new_rows[i]] == new_keys[i])
          << "a key that was added has a row";
    }
  }

  void Maintain() {
    bool has_memory;
    const Array<int32_t> rested = table_.TakeResting(&has_memory);
    if (input_.Pick(4) == 0) {
      table_.PutBackResting(rested.data(), rested.size(), table_.build());
    } else {
      table_.Free(columns_, keys_.data(), rested.data(), rested.size());
    }
    DynamicTable::Eviction eviction;
    EXPECT_TRUE(table_.PlanEviction(
        columns_, clock_, input_.Pick(8),
        static_cast<DynamicTable::Order>(input_.Pick(3)), &eviction))
        << "there is memory";
    int32_t rows[16];
    for (int64_t from = first_row_; from < table_.end_row();) {
      const int64_t size = table_.Collect(columns_, &eviction, &from, 16, rows);
      EXPECT_TRUE(table_.Evict(columns_, keys_.data(), eviction, rows, size) ==
                  size)
          << "what is to be evicted is";
    }
  }

  // Whatever the columns hold, they are accepted or refused.
  void Damage() {
    for (int i = input_.Pick(4); i >= 0; --i) {
      const int64_t row = first_row_ + input_.Pick(256) % capacity_;
      keys_[row] = Key();
      columns_.set_use(row, {input_.Pick(8) - 2, input_.Pick(5) - 1});
    }
    Build();
  }

  void Build() {
    InlineSharder sharder(3);
    int64_t bad_row = -1;
    if (table_.Build(columns_, sharder, &bad_row) !=
        DynamicTable::BuildStatus::kOk) {
      EXPECT_TRUE(table_.has_row(bad_row)) << "what is to blame is a row";
      std::fill(keys_.begin(), keys_.end(), 0);
      std::fill(uses_.begin(), uses_.end(), 0);
      EXPECT_TRUE(table_.Build(columns_, sharder, &bad_row) ==
                  DynamicTable::BuildStatus::kOk)
          << "an empty table can be built";
    }
  }

  void Call() {
    switch (input_.Pick(8)) {
      case 0:
        return Maintain();
      case 1:
        return Build();
      case 2:
        return Damage();
      case 3:
        clock_ += input_.Pick(4);
        return;
      default:
        return Use();
    }
  }

  void Check() {
    std::map<int64_t, int32_t> rows;
    for (int64_t row = first_row_; row < table_.end_row(); ++row) {
      if (columns_.use(row).is_in_use()) {
        EXPECT_TRUE(rows.emplace(keys_[row], static_cast<int32_t>(row)).second)
            << "a key has one row";
      }
    }
    EXPECT_EQ(table_.counts().in_use, static_cast<int64_t>(rows.size()))
        << "rows in use are counted";
    std::vector<int64_t> keys;
    std::vector<int32_t> expected;
    for (const auto& [key, row] : rows) {
      keys.push_back(key);
      expected.push_back(row);
    }
    std::vector<int32_t> found(keys.size());
    InlineSharder sharder(3);
    bool has_memory;
    table_.Find(columns_, keys.data(), static_cast<int64_t>(keys.size()),
                found.data(), sharder, &has_memory);
    EXPECT_EQ(found, expected) << "what is there is found";
  }

  FuzzInput& input_;
  const int64_t first_row_;
  const int64_t capacity_;
  std::vector<int64_t> keys_;
  std::vector<uint64_t> uses_;
  const TableColumns columns_;
  DynamicTable table_;
  int32_t clock_ = 0;
};

TEST(TableFuzzTest, EachKeyHasOneRowAndIsFound) {
  RunSeeds([](FuzzInput* input) { TableFuzz(input).Run(); });
}

}  // namespace
}  // namespace tf_syncrep
