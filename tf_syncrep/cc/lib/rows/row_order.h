// Sorts the rows of sparse gradients, so that equal ones are next to each
// other, and other items by buckets.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_

#include <cstdint>
#include <utility>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// One occurrence of a row, and the caller's note of its place. Row is uint32_t
// if that is enough, or uint64_t: a sort spends its time on moving occurrences.
template <typename Row>
struct RowOccurrence {
  Row row;
  Row place;
};

// Sorts by row; occurrences of one row keep their order. It is a radix sort,
// linear in `size`. Uses both arrays, of `size` each, and returns the one that
// holds the result. If the occurrences are sorted already, that is the first,
// and the second is not used. Returns null, and has changed nothing, when there
// is no memory for the counts.
template <typename Row>
RowOccurrence<Row>* SortByRow(RowOccurrence<Row>* occurrences,
                              RowOccurrence<Row>* spare, int64_t size,
                              Sharder& sharder);

// With more buckets than this, their write positions no longer stay in the
// first-level cache.
inline constexpr int kMaxBucketBits = 11;

// Each of `num_parts` rows of `places` holds how many items of each bucket one
// part of all items has. Replaces the counts by the places where the part's
// first item of each bucket goes: buckets follow each other, and the parts
// follow each other within a bucket.
inline void PlaceBuckets(int64_t num_parts, int64_t num_buckets,
                         int64_t* places) {
  int64_t place = 0;
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    for (int64_t part = 0; part < num_parts; ++part) {
      place += std::exchange(places[part * num_buckets + bucket], place);
    }
  }
}

// Among `size` sorted occurrences, calls `visit(begin, end)` for those of each
// row whose first occurrence is in [from, to), in order.
template <typename Row, typename Visit>
TF_SYNCREP_ALWAYS_INLINE void ForEachRow(const RowOccurrence<Row>* sorted,
                                         int64_t size, int64_t from, int64_t to,
                                         const Visit& visit) {
  int64_t begin = from;
  while (begin > 0 && begin < to &&
         sorted[begin].row == sorted[begin - 1].row) {
    ++begin;
  }
  while (begin < to) {
    int64_t end = begin + 1;
    while (end < size && sorted[end].row == sorted[begin].row) {
      ++end;
    }
    visit(begin, end);
    begin = end;
  }
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_
