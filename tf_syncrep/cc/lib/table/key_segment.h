// A hash table that finds the rows of keys, and has neither keys nor locks.

#ifndef TF_SYNCREP_CC_LIB_TABLE_KEY_SEGMENT_H_
#define TF_SYNCREP_CC_LIB_TABLE_KEY_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/table/key_hash.h"

namespace tf_syncrep {

// Open addressing in buckets of a cache line each: twelve tags of one byte,
// and twelve row numbers. The keys themselves are a column of the table, `keys`
// in what follows, which is looked at where a tag fits: in 250 of 256 cases
// that is where the key is. What finds no place in its bucket goes to the next
// one; each bucket counts what went past it, so that a search knows where to
// end, and nothing is left behind by what is erased. (Meta's F14 does so.)
//
// A segment grows by half when three in four to seven in eight of its places
// are taken, and each one at another time, by its number: equally full ones
// would otherwise all grow at once. So a row takes some 8 bytes. To grow takes
// time in proportion to the segment's size, which is bounded by having many of
// them.
//
// Not thread-safe. A row is in it once at most, and its key does not change
// meanwhile.
class KeySegment {
 public:
  explicit KeySegment(int64_t number) : number_(number) {}

  // The row of a key, or -1.
  TF_SYNCREP_ALWAYS_INLINE int32_t Find(uint64_t hash, int64_t key,
                                        const int64_t* keys) const;

  // A row in the key's first bucket that may be its row: what Find() will look
  // at. -1 for none.
  TF_SYNCREP_ALWAYS_INLINE int32_t Guess(uint64_t hash) const;

  // Asks for the memory that Guess() reads.
  TF_SYNCREP_ALWAYS_INLINE void PrefetchBucket(uint64_t hash) const {
    Prefetch<PrefetchFor::kReading>(
        buckets_.get() + KeyBucket(hash, num_buckets_), sizeof(Bucket));
  }

  // Adds a row whose key is not there. Returns false, and nothing has changed,
  // when there is no memory.
  [[nodiscard]] bool Insert(uint64_t hash, int32_t row, const int64_t* keys);

  // Removes a row. Returns false if it is not there.
  bool Erase(uint64_t hash, int32_t row);

  // Forgets all.
  void Clear();

  int64_t size() const { return size_; }
  int64_t bytes() const {
    return num_buckets_ * static_cast<int64_t>(sizeof(Bucket));
  }

 private:
  static constexpr int kPlaces = 12;
  static constexpr uint8_t kManyPast = 255;

  struct alignas(64) Bucket {
    uint8_t tags[kPlaces];  // 0: the place is free
    uint8_t num_past;       // how many went on to the next bucket; or kManyPast
    uint8_t unused[3];
    int32_t rows[kPlaces];
  };
  static_assert(sizeof(Bucket) == 64, "a bucket is a cache line");

  struct Free {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };
  using Buckets = std::unique_ptr<Bucket[], Free>;

  // Bit 8 * i + 7 is set where tag i of eight is `tag`, and perhaps for others
  // behind the first.
  static TF_SYNCREP_ALWAYS_INLINE uint64_t Matches(uint64_t tags, uint8_t tag) {
    constexpr uint64_t kOnes = 0x0101010101010101u;
    const uint64_t difference = tags ^ (kOnes * tag);
    return (difference - kOnes) & ~difference & (kOnes << 7);
  }

  // Calls `visit(place)` for places whose tag may be `tag`, until it returns
  // true; whether it did.
  template <typename Visit>
  static TF_SYNCREP_ALWAYS_INLINE bool VisitMatches(const Bucket& bucket,
                                                    uint8_t tag,
                                                    const Visit& visit);

  static Buckets NewBuckets(int64_t num);
  static void Put(uint64_t hash, int32_t row, int64_t num_buckets,
                  Bucket* buckets);
  bool Grow(const int64_t* keys);

  // How many rows it takes before it grows.
  int64_t MostRows(int64_t num_buckets) const;

  int64_t number_;
  Buckets buckets_;
  int64_t num_buckets_ = 0;
  int64_t most_rows_ = 0;
  int64_t size_ = 0;
};

template <typename Visit>
TF_SYNCREP_ALWAYS_INLINE bool KeySegment::VisitMatches(const Bucket& bucket,
                                                       uint8_t tag,
                                                       const Visit& visit) {
  uint64_t first;
  uint32_t last;
  __builtin_memcpy(&first, bucket.tags, sizeof(first));
  __builtin_memcpy(&last, bucket.tags + sizeof(first), sizeof(last));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "the lowest byte must be the first"
#endif
  for (uint64_t found = Matches(first, tag); found != 0; found &= found - 1) {
    if (visit(__builtin_ctzll(found) / 8)) {
      return true;
    }
  }
  // What is no tag must match none.
  const uint64_t others = last | uint64_t{0xffffffffu} << 32;
  for (uint64_t found = Matches(others, tag) & 0xffffffffu; found != 0;
       found &= found - 1) {
    if (visit(8 + __builtin_ctzll(found) / 8)) {
      return true;
    }
  }
  return false;
}

TF_SYNCREP_ALWAYS_INLINE int32_t KeySegment::Guess(uint64_t hash) const {
  int32_t row = -1;
  if (num_buckets_ > 0) {
    const Bucket& bucket = buckets_[KeyBucket(hash, num_buckets_)];
    VisitMatches(bucket, KeyTag(hash), [&](int place) {
      row = bucket.rows[place];
      return true;
    });
  }
  return row;
}

TF_SYNCREP_ALWAYS_INLINE int32_t KeySegment::Find(uint64_t hash, int64_t key,
                                                  const int64_t* keys) const {
  if (num_buckets_ == 0) {
    return -1;
  }
  int32_t row = -1;
  int64_t at = KeyBucket(hash, num_buckets_);
  for (int64_t i = 0; i < num_buckets_; ++i) {
    const Bucket& bucket = buckets_[at];
    const bool is_found = VisitMatches(bucket, KeyTag(hash), [&](int place) {
      row = bucket.rows[place];
      return bucket.tags[place] != 0 && keys[row] == key;
    });
    if (is_found) {
      return row;
    }
    if (bucket.num_past == 0) {
      break;
    }
    at = at + 1 == num_buckets_ ? 0 : at + 1;
  }
  return -1;
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_KEY_SEGMENT_H_
