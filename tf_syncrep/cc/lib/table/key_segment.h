// KeySegment is a hash table that finds the rows of keys, and has neither keys
// nor locks.

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

// It uses open addressing in buckets of a cache line each, which have twelve
// tags of one byte and twelve row numbers. The keys themselves are a column of
// the table, which the functions below get as `keys`. They are read only where
// a tag fits, which is the right place in about 250 of 256 cases. A row that
// finds no place in its bucket goes to the next one. Each bucket counts the
// rows that went past it, so that a search knows where to end, and erased rows
// leave nothing behind. (Meta's F14 does so, too.)
//
// A segment grows by half when between three in four and seven in eight of its
// places are taken. The share depends on its number, since otherwise equally
// full segments would all grow at once. So a row takes some 8 bytes. The time
// that growing takes is proportional to the segment's size, which is bounded,
// as there are many segments.
//
// It is not thread-safe. A row is in it once at most, and the row's key must
// not change while it is.
class KeySegment {
 public:
  explicit KeySegment(int64_t number) : number_(number) {}

  TF_SYNCREP_ALWAYS_INLINE int32_t Find(uint64_t hash, int64_t key,
                                        const int64_t* keys) const;

  // Returns a row in the key's first bucket that may be the key's row, which
  // Find() will look at, or -1 if there is none.
  TF_SYNCREP_ALWAYS_INLINE int32_t Guess(uint64_t hash) const;

  TF_SYNCREP_ALWAYS_INLINE void PrefetchBucket(uint64_t hash) const {
    Prefetch<PrefetchFor::kReading>(
        buckets_.get() + KeyBucket(hash, num_buckets_), sizeof(Bucket));
  }

  // Makes room for `size` rows, in as many buckets as it would have if they
  // were added one by one. If there is no memory, it changes nothing and
  // returns false.
  [[nodiscard]] bool Reserve(int64_t size, const int64_t* keys);

  // Adds a row whose key is not there yet. If there is no memory, it changes
  // nothing and returns false.
  [[nodiscard]] bool Insert(uint64_t hash, int32_t row, const int64_t* keys);

  // Removes a row. Returns false if it is not there.
  bool Erase(uint64_t hash, int32_t row);

  void Clear();

  int64_t size() const { return size_; }
  int64_t bytes() const {
    return num_buckets_ * static_cast<int64_t>(sizeof(Bucket));
  }

 private:
  static constexpr int kPlaces = 12;
  static constexpr uint8_t kManyPast = 255;

  struct alignas(64) Bucket {
    uint8_t tags[kPlaces];  // 0 if the place is free
    uint8_t num_past;       // rows that went to the next bucket, or kManyPast
    uint8_t unused[3];
    int32_t rows[kPlaces];
  };
  static_assert(sizeof(Bucket) == 64, "a bucket is a cache line");

  struct Free {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };
  using Buckets = std::unique_ptr<Bucket[], Free>;

  // Returns a number whose bit 8 * i + 7 is set if tag i of eight is `tag`.
  // Behind the first match it may also be set for other tags.
  static TF_SYNCREP_ALWAYS_INLINE uint64_t Matches(uint64_t tags, uint8_t tag) {
    constexpr uint64_t kOnes = 0x0101010101010101u;
    const uint64_t difference = tags ^ (kOnes * tag);
    return (difference - kOnes) & ~difference & (kOnes << 7);
  }

  // Calls `visit(place)` for places whose tag may be `tag`, until that returns
  // true. Returns whether it did.
  template <typename Visit>
  static TF_SYNCREP_ALWAYS_INLINE bool VisitMatches(const Bucket& bucket,
                                                    uint8_t tag,
                                                    const Visit& visit);

  static Buckets NewBuckets(int64_t num);
  static void Put(uint64_t hash, int32_t row, int64_t num_buckets,
                  Bucket* buckets);

  // Returns the number of rows at which it grows.
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
  // The bytes that are no tags must not match any.
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
