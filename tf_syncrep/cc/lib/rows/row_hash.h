// The hash of a row number.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_HASH_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_HASH_H_

#include <cstdint>

namespace tf_syncrep {

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): all 64 result bits
// depend on all bits of `row`, so any of them may choose a shard, a stripe or a
// bucket, also for strided rows.
inline uint64_t HashRow(int64_t row) {
  uint64_t hash = static_cast<uint64_t>(row) + 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_HASH_H_
