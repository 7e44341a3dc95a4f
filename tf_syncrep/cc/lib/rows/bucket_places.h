// Where the items of buckets go in a stable counting sort by several threads.

#ifndef TF_SYNCREP_CC_LIB_ROWS_BUCKET_PLACES_H_
#define TF_SYNCREP_CC_LIB_ROWS_BUCKET_PLACES_H_

#include <cstdint>
#include <utility>

namespace tf_syncrep {

// With more buckets than this, their write positions no longer stay in the
// first-level cache.
constexpr int kMaxBucketBits = 11;

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

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_BUCKET_PLACES_H_
