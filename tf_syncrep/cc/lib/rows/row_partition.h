// How the rows of a table are distributed among shards.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_PARTITION_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_PARTITION_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

// Gives each row a number, its key. By their keys the rows of shard 0 come
// first, ascending, then those of shard 1, and so on.
class RowPartition {
 public:
  // Row r of `num_rows` is row r / num_shards of shard r % num_shards, so that
  // popular rows are spread over all shards, wherever in the table they are.
  // There must be at least one shard.
  static RowPartition Modulo(int64_t num_rows, int64_t num_shards) {
    RowPartition partition;
    partition.num_rows_ = num_rows;
    partition.num_shards_ = static_cast<uint64_t>(num_shards);
    partition.reciprocal_ = ~uint64_t{0} / partition.num_shards_ + 1;
    for (int64_t shard = 0; shard <= num_shards; ++shard) {
      // All shards but the last ones have this many rows.
      partition.begins_.push_back(shard *
                                  ((num_rows + num_shards - 1) / num_shards));
    }
    return partition;
  }

  // Each shard has a range of rows: the first `sizes[0]` rows belong to shard
  // 0, and so on. No size is negative.
  static RowPartition Ranges(const std::vector<int64_t>& sizes) {
    RowPartition partition;
    partition.begins_.push_back(0);
    for (const int64_t size : sizes) {
      partition.begins_.push_back(partition.begins_.back() + size);
    }
    partition.num_rows_ = partition.begins_.back();
    return partition;
  }

  int64_t num_rows() const { return num_rows_; }
  int64_t num_shards() const {
    return static_cast<int64_t>(begins_.size()) - 1;
  }

  // The key of row 0 of a shard. That of shard num_shards() is above all keys.
  int64_t begin(int64_t shard) const { return begins_[shard]; }

  // The key of a row, which is in [0, num_rows()).
  TF_SYNCREP_ALWAYS_INLINE int64_t Key(int64_t row) const {
    if (num_shards_ <= 1) {
      return row;
    }
    const uint64_t quotient = Divide(static_cast<uint64_t>(row));
    const uint64_t shard = static_cast<uint64_t>(row) - quotient * num_shards_;
    return begins_[shard] + static_cast<int64_t>(quotient);
  }

 private:
  RowPartition() = default;

  // A division by a number that the compiler does not know takes as long as
  // everything else that is done to a row. This one is exact for 32 bits
  // (Lemire, Kaser and Kurz, "Faster remainder by direct computation", 2019).
  TF_SYNCREP_ALWAYS_INLINE uint64_t Divide(uint64_t row) const {
    if ((row | num_shards_) >> 32 != 0) {
      return row / num_shards_;
    }
    __extension__ using uint128 = unsigned __int128;
    return static_cast<uint64_t>((uint128{reciprocal_} * row) >> 64);
  }

  int64_t num_rows_ = 0;
  uint64_t num_shards_ = 1;  // 1 if keys are rows
  uint64_t reciprocal_ = 0;  // 2^64 / num_shards_, rounded up; 0 for 1
  std::vector<int64_t> begins_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_PARTITION_H_
