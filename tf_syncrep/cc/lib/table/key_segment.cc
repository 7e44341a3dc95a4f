#include "tf_syncrep/cc/lib/table/key_segment.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tf_syncrep {

KeySegment::Buckets KeySegment::NewBuckets(int64_t num) {
  const size_t bytes = static_cast<size_t>(num) * sizeof(Bucket);
  Buckets buckets(
      static_cast<Bucket*>(std::aligned_alloc(sizeof(Bucket), bytes)));
  if (buckets != nullptr) {
    std::memset(static_cast<void*>(buckets.get()), 0, bytes);
  }
  return buckets;
}

void KeySegment::Put(uint64_t hash, int32_t row, int64_t num_buckets,
                     Bucket* buckets) {
  for (int64_t at = KeyBucket(hash, num_buckets);;) {
    Bucket& bucket = buckets[at];
    const bool is_put = VisitMatches(bucket, 0, [&](int place) {
      if (bucket.tags[place] != 0) {
        return false;
      }
      bucket.tags[place] = KeyTag(hash);
      bucket.rows[place] = row;
      return true;
    });
    if (is_put) {
      return;
    }
    bucket.num_past += bucket.num_past != kManyPast;
    at = at + 1 == num_buckets ? 0 : at + 1;
  }
}

int64_t KeySegment::MostRows(int64_t num_buckets) const {
  // The share of taken places is from 96 to 111 in 128.
  const auto share =
      96 + static_cast<int64_t>(HashKey(number_ ^ num_buckets << 32) % 16);
  return num_buckets * kPlaces * share / 128;
}

bool KeySegment::Reserve(int64_t size, const int64_t* keys) {
  if (size <= most_rows_) {
    return true;
  }
  int64_t num = num_buckets_;
  while (MostRows(num) < size) {
    num += std::max<int64_t>(1, num / 2);
  }
  Buckets grown = NewBuckets(num);
  if (grown == nullptr) {
    return false;
  }
  constexpr int64_t kBucketsAhead = 2;
  for (int64_t at = 0; at < num_buckets_; ++at) {
    if (at + kBucketsAhead < num_buckets_) {
      const Bucket& ahead = buckets_[at + kBucketsAhead];
      for (int place = 0; place < kPlaces; ++place) {
        // Places that are not taken are prefetched, too, since any address is
        // allowed.
        Prefetch<PrefetchFor::kReading>(keys + ahead.rows[place],
                                        sizeof(int64_t));
      }
    }
    const Bucket& bucket = buckets_[at];
    for (int place = 0; place < kPlaces; ++place) {
      if (bucket.tags[place] != 0) {
        const int32_t row = bucket.rows[place];
        Put(HashKey(keys[row]), row, num, grown.get());
      }
    }
  }
  buckets_ = std::move(grown);
  num_buckets_ = num;
  most_rows_ = MostRows(num);
  return true;
}

bool KeySegment::Insert(uint64_t hash, int32_t row, const int64_t* keys) {
  if (!Reserve(size_ + 1, keys)) {
    return false;
  }
  Put(hash, row, num_buckets_, buckets_.get());
  ++size_;
  return true;
}

bool KeySegment::Erase(uint64_t hash, int32_t row) {
  if (num_buckets_ == 0) {
    return false;
  }
  const int64_t home = KeyBucket(hash, num_buckets_);
  const auto next = [&](int64_t at) {
    return at + 1 == num_buckets_ ? 0 : at + 1;
  };
  int64_t at = home;
  for (int64_t i = 0; i < num_buckets_; ++i, at = next(at)) {
    Bucket& bucket = buckets_[at];
    const bool is_erased = VisitMatches(bucket, KeyTag(hash), [&](int place) {
      if (bucket.tags[place] == 0 || bucket.rows[place] != row) {
        return false;
      }
      bucket.tags[place] = 0;
      return true;
    });
    if (is_erased) {
      for (int64_t past = home; past != at; past = next(past)) {
        buckets_[past].num_past -= buckets_[past].num_past != kManyPast;
      }
      --size_;
      return true;
    }
    if (bucket.num_past == 0) {
      break;
    }
  }
  return false;
}

void KeySegment::Clear() {
  buckets_.reset();
  num_buckets_ = 0;
  most_rows_ = 0;
  size_ = 0;
}

}  // namespace tf_syncrep
