// Arranges looked-up rows for the features that asked for them, and sums the
// features' gradients by row.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_COMBINE_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_COMBINE_H_

#include <cstdint>
#include <vector>

#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// How the rows of an example that has several ids are combined.
enum class Combiner {
  kNone,   // not at all: each id has one result
  kSum,    // the sum of the rows, each times its weight
  kMean,   // the sum divided by the sum of the weights; 0 if that is 0
  kSqrtn,  // the sum divided by the root of the sum of squared weights
};

// One feature. Result i combines the ids from row_splits[i] to row_splits[i +
// 1] or, without row_splits, the next `ids_per_result` ids. With kNone result i
// is the row of id i.
struct CombinedFeature {
  Combiner combiner;
  const int32_t* places;  // of each id, among the rows of all shards
  int64_t num_ids;
  int64_t num_results;
  int64_t ids_per_result;
  const int64_t* row_splits;  // ascending, from 0 to num_ids; or null
  // The weight of each id. Null means 1; kNone requires null.
  const float* weights;
};

template <typename T>
struct ShardRows {
  T* rows;
  int64_t num_rows;
};

// Sets results[f][i * width + c], column c of result i of feature f. Sums are
// computed in SlotType<T>, in the order of the ids. Returns false if a place is
// not below the number of rows, or when there is no memory, as `has_memory`
// tells; the results are then useless.
template <typename T>
bool CombineRows(const std::vector<ShardRows<const T>>& shards, int64_t width,
                 const std::vector<CombinedFeature>& features,
                 const std::vector<SlotType<T>*>& results, Sharder& sharder,
                 bool* has_memory);

// The gradient of CombineRows(): sets each row of `shards` to the sum of the
// shares that its ids have in `gradients`, the gradients of the results. Sums
// are computed in SlotType<T>, in the order of features and ids, and rounded
// once; they do not depend on the number of threads. Returns what CombineRows()
// returns.
template <typename T>
bool CombineRowsGradient(const std::vector<ShardRows<T>>& shards, int64_t width,
                         const std::vector<CombinedFeature>& features,
                         const std::vector<const SlotType<T>*>& gradients,
                         Sharder& sharder, bool* has_memory);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_COMBINE_H_
