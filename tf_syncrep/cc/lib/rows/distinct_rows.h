// Finds the distinct rows that the ids of a batch name, shard by shard.

#ifndef TF_SYNCREP_CC_LIB_ROWS_DISTINCT_ROWS_H_
#define TF_SYNCREP_CC_LIB_ROWS_DISTINCT_ROWS_H_

#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/rows/row_partition.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// The ids of one feature. They count the rows of a table, and tables are
// stacked: row 0 of this one is row `first_row` of all.
struct FeatureIds {
  const int32_t* ids32;  // these, or else
  const int64_t* ids64;  // these
  int64_t size;
  int64_t first_row;
  int64_t vocabulary_size;
};

// An id that is not in its table.
struct BadId {
  int64_t feature = -1;  // none
  int64_t position = 0;
  int64_t id = 0;
};

// The rows that several features' ids name, each once, in the order of their
// keys in a partition, and which of them each id names. None of it depends on
// the number of threads.
class DistinctRows {
 public:
  enum class Status { kOk, kBadId, kOutOfMemory };

  // Takes time linear in the number of ids, which is below 2^31. With kBadId,
  // `bad_id` is the first of the first feature that has any; with anything but
  // kOk the object is as it was made. Tables lie within the partition.
  Status Find(const std::vector<FeatureIds>& features,
              const RowPartition& partition, Sharder& sharder, BadId* bad_id);

  // How many of the rows are on a shard.
  int64_t num_rows(int64_t shard) const {
    return shard_begins_[shard + 1] - shard_begins_[shard];
  }

  // Writes the rows of a shard, as that numbers them, ascending.
  template <typename Row>
  void WriteRows(const RowPartition& partition, int64_t shard, Row* rows) const;

  // Writes, for each id of a feature, the place of its row among the rows of
  // all shards, those of shard 0 first.
  void WritePlaces(int64_t feature, int32_t* places) const;

 private:
  template <typename Key>
  Status FindOf(const std::vector<FeatureIds>& features,
                const RowPartition& partition, Sharder& sharder, BadId* bad_id);

  std::vector<int64_t> feature_begins_;  // and where the last one ends
  std::vector<int64_t> shard_begins_;    // likewise, among the rows
  Array<uint64_t> keys_;                 // of the rows, ascending
  Array<int32_t> places_;                // of each id
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_DISTINCT_ROWS_H_
