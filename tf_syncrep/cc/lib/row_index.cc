#include "tf_syncrep/cc/lib/row_index.h"

#include <algorithm>
#include <array>

#include "tf_syncrep/cc/lib/row_hash.h"

namespace tf_syncrep {
namespace {

constexpr size_t kMinBuckets = 64;
constexpr int64_t kBlockRows = 16;

inline uint32_t TagOf(uint64_t hash) {
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

bool RowIndex::Insert(const int64_t* rows, int64_t num_rows, int32_t* numbers) {
  const int64_t size_before = size();
  int64_t size = size_before;
  std::array<uint64_t, kBlockRows> hashes;
  std::array<uint64_t, kBlockRows> next_hashes;
  // While a block is looked for, the buckets of the next are fetched.
  const auto fetch = [&](int64_t begin) {
    const int64_t count = std::min(kBlockRows, num_rows - begin);
    const Bucket* const buckets = buckets_.data();
    const uint64_t mask = buckets_.size() - 1;
    for (int64_t i = 0; i < count; ++i) {
      next_hashes[i] = HashRow(rows[begin + i]);
      __builtin_prefetch(&buckets[next_hashes[i] & mask]);
    }
  };
  if (buckets_.empty()) {
    Grow();
  }
  fetch(0);
  for (int64_t begin = 0; begin < num_rows; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, num_rows - begin);
    if (size > kMaxRows - count) {
      rows_.resize(size);
      Truncate(size_before);
      return false;
    }
    rows_.resize(size + count);  // cut below to what there is
    hashes = next_hashes;
    fetch(begin + kBlockRows);
    Bucket* const buckets = buckets_.data();
    const uint64_t mask = buckets_.size() - 1;
    int64_t* const known = rows_.data();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[begin + i];
      const uint32_t tag = TagOf(hashes[i]);
      uint64_t place = hashes[i] & mask;
      while (buckets[place].number != 0 &&
             (buckets[place].tag != tag ||
              known[buckets[place].number - 1] != row)) {
        place = (place + 1) & mask;
      }
      if (buckets[place].number == 0) {
        known[size] = row;
        ++size;
        buckets[place] = {tag, static_cast<uint32_t>(size)};
      }
      numbers[begin + i] = static_cast<int32_t>(buckets[place].number - 1);
    }
    rows_.resize(size);
    while (2 * (rows_.size() + kBlockRows) >= buckets_.size()) {
      Grow();
    }
  }
  return true;
}

void RowIndex::Truncate(int64_t size) {
  const uint64_t mask = buckets_.size() - 1;
  while (this->size() > size) {
    const uint32_t number = static_cast<uint32_t>(rows_.size());
    uint64_t place = HashRow(rows_.back()) & mask;
    while (buckets_[place].number != number) {
      place = (place + 1) & mask;
    }
    buckets_[place] = {};
    rows_.pop_back();
  }
}

void RowIndex::Clear() {
  std::fill(buckets_.begin(), buckets_.end(), Bucket{});
  rows_.clear();
}

void RowIndex::Grow() {
  const size_t num_buckets = std::max(kMinBuckets, 2 * buckets_.size());
  buckets_.assign(num_buckets, Bucket{});
  const uint64_t mask = num_buckets - 1;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const uint64_t hash = HashRow(rows_[i]);
    uint64_t place = hash & mask;
    while (buckets_[place].number != 0) {
      place = (place + 1) & mask;
    }
    buckets_[place] = {TagOf(hash), static_cast<uint32_t>(i + 1)};
  }
}

}  // namespace tf_syncrep
