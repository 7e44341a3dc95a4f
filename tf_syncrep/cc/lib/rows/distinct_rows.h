// Finds the distinct rows that the ids of a batch name, shard by shard.

#ifndef TF_SYNCREP_CC_LIB_ROWS_DISTINCT_ROWS_H_
#define TF_SYNCREP_CC_LIB_ROWS_DISTINCT_ROWS_H_

#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/rows/feature_ranges.h"
#include "tf_syncrep/cc/lib/rows/row_partition.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// They count the rows of a table. Tables are stacked: row 0 of this table is
// row `first_row` of the stack.
struct FeatureIds : IdsOfFeature {
  int64_t first_row;
  int64_t vocabulary_size;
};

struct BadId {
  int64_t feature = -1;  // -1 if there is none
  int64_t position = 0;
  int64_t id = 0;
};

// The distinct rows that several features' ids name, in the order of their keys
// in a partition, and the row that each id names. The result does not depend on
// the number of threads.
class DistinctRows {
 public:
  enum class Status { kOk, kBadId, kOutOfMemory };

  // Takes time linear in the number of ids, which must be below 2^31. With
  // kBadId, `bad_id` is the first bad id of the first feature that has one.
  // Unless the result is kOk, the object is as it was made. All tables must lie
  // within the partition.
  Status Find(const std::vector<FeatureIds>& features,
              const RowPartition& partition, Sharder& sharder, BadId* bad_id);

  // How many of the rows are on a shard.
  int64_t num_rows(int64_t shard) const {
    return shard_begins_[shard + 1] - shard_begins_[shard];
  }

  // Writes the rows of a shard, ascending, with the numbers that they have
  // there.
  template <typename Row>
  void WriteRows(const RowPartition& partition, int64_t shard, Row* rows) const;

  // Writes, for each id of a feature, the place of its row among the rows of
  // all shards; the rows of shard 0 come first.
  void WritePlaces(int64_t feature, int32_t* places) const;

 private:
  template <typename Key>
  Status FindOf(const std::vector<FeatureIds>& features,
                const RowPartition& partition, Sharder& sharder, BadId* bad_id);

  std::vector<int64_t> feature_begins_;  // and the last one's end
  std::vector<int64_t> shard_begins_;    // likewise, among the rows
  Array<uint64_t> keys_;                 // the rows' keys, ascending
  Array<int32_t> places_;                // for each id
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_DISTINCT_ROWS_H_
