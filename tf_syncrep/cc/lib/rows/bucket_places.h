// Where the items of buckets go in a stable counting sort by several threads.

#ifndef TF_SYNCREP_CC_LIB_ROWS_BUCKET_PLACES_H_
#define TF_SYNCREP_CC_LIB_ROWS_BUCKET_PLACES_H_

#include <cstdint>
#include <utility>

namespace tf_syncrep {

// More buckets than this, and the write position of each no longer stays in the
// first-level cache.
constexpr int kMaxBucketBits = 11;

// Each of `num_parts` rows of `places` says how many items of each bucket a
// part of all items has. Sets them to where the part's first item of the bucket
// goes: buckets follow each other, and in each of them the parts.
inline void PlaceBuckets(int64_t num_parts, int64_t num_buckets,
                         int64_t* places) {
  int64_t place = 0;
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    for (int64_t part = 0; part < num_parts; ++part) {
      place += std::exchange(places[part * num_buckets + bucket], place);
    }
  }
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_BUCKET_PLACES_H_
