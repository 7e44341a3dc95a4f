// Lays out looked-up rows for the features that asked for them, and sums the
// features' gradients by row.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_COMBINE_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_COMBINE_H_

#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// What becomes of the rows of an example that has several ids.
enum class Combiner {
  kNone,   // Each id has one result.
  kSum,    // The sum, each row times its weight.
  kMean,   // The same by the sum of the weights; 0 where that is 0.
  kSqrtn,  // The same by the root of the sum of their squares.
};

// One feature. Result i is that of the ids from row_splits[i] to row_splits[i +
// 1], or, without row_splits, of the next `ids_per_result` ones; with kNone it
// is that of id i.
struct CombinedFeature {
  Combiner combiner;
  const int32_t* places;  // for each id, among the rows of all shards
  int64_t num_ids;
  int64_t num_results;
  int64_t ids_per_result;
  const int64_t* row_splits;  // ascending, from 0 to num_ids; or null
  const float* weights;       // for each id; null: 1. Null with kNone.
};

// The rows of a shard.
template <typename T>
struct ShardRows {
  T* rows;
  int64_t num_rows;
};

// Sets results[f][i * width + c], column c of result i of feature f. Sums are
// in SlotType<T>, in the order of the ids. Returns false if a place is not
// below the number of rows, or when there is no memory, as `has_memory` says;
// the results are then of no use.
template <typename T>
bool CombineRows(const std::vector<ShardRows<const T>>& shards, int64_t width,
                 const std::vector<CombinedFeature>& features,
                 const std::vector<SlotType<T>*>& results, Sharder& sharder,
                 bool* has_memory);

// The gradient of the same: sets each row of `shards` to the sum of what the
// ids that name it get of `gradients`, those of the results. Sums are in
// SlotType<T>, in the order of features and ids, and rounded once; they do not
// depend on the number of threads. Returns what CombineRows() does.
template <typename T>
bool CombineRowsGradient(const std::vector<ShardRows<T>>& shards, int64_t width,
                         const std::vector<CombinedFeature>& features,
                         const std::vector<const SlotType<T>*>& gradients,
                         Sharder& sharder, bool* has_memory);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_COMBINE_H_
