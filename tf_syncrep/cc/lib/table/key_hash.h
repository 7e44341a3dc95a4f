// The hash of a key of a table that grows, and what its bits choose.

#ifndef TF_SYNCREP_CC_LIB_TABLE_KEY_HASH_H_
#define TF_SYNCREP_CC_LIB_TABLE_KEY_HASH_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/rows/row_hash.h"

namespace tf_syncrep {

// All 64 bits depend on all bits of the key. It is part of the format of files:
// which part of a table has a key must not change.
inline uint64_t HashKey(int64_t key) { return HashRow(key); }

// Which of several parts of a table has a key.
class KeyOwner {
 public:
  explicit KeyOwner(int64_t num_shards)
      : num_shards_(static_cast<uint64_t>(num_shards)),
        inverse_(~uint64_t{0} / num_shards_) {}

  // The hash modulo the number of parts. A division would take longer than all
  // else that is done for a key.
  int64_t operator()(uint64_t hash) const {
    // The quotient, or one less.
    const auto quotient = static_cast<uint64_t>(
        static_cast<unsigned __int128>(hash) * inverse_ >> 64);
    const uint64_t rest = hash - quotient * num_shards_;
    return static_cast<int64_t>(rest < num_shards_ ? rest : rest - num_shards_);
  }

 private:
  uint64_t num_shards_;
  uint64_t inverse_;
};

// Within a part, bits choose places of ever finer grain. The lowest ten are
// left alone: where the number of parts is a power of two they are the same for
// all keys of a part.
//
// Bits 58 to 63 choose the stripe, which has a lock of its own; in a small
// table the highest of them do, of which there are so many.
inline constexpr int kMostKeyStripeBits = 6;
inline int KeyStripe(uint64_t hash, int bits) {
  return static_cast<int>(hash >> 58) >> (kMostKeyStripeBits - bits);
}
// Bits 42 to 57 choose the segment of a stripe, which has at most 2^16 of them,
// a power of two.
inline int64_t KeySegmentOf(uint64_t hash, int64_t num_segments) {
  return static_cast<int64_t>(hash >> 42) & (num_segments - 1);
}
// Bits 10 to 41 choose the bucket of a segment, which may have any number of
// them.
inline int64_t KeyBucket(uint64_t hash, int64_t num_buckets) {
  return static_cast<int64_t>(
      ((hash >> 10 & 0xffffffffu) * static_cast<uint64_t>(num_buckets)) >> 32);
}
// Bits 10 to 17, which hardly affect the bucket, make the tag, which is never
// 0.
inline uint8_t KeyTag(uint64_t hash) {
  const auto tag = static_cast<uint8_t>(hash >> 10);
  return tag == 0 ? 1 : tag;
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_KEY_HASH_H_
