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
  if (buckets_.empty()) {
    Grow();
  }
  // While a block is looked for, the buckets of the next are fetched.
  std::array<uint64_t, kBlockRows> hashes;
  std::array<uint64_t, kBlockRows> next_hashes;
  const auto fetch = [&](int64_t begin) {
    const int64_t count = std::min(kBlockRows, num_rows - begin);
    for (int64_t i = 0; i < count; ++i) {
      next_hashes[i] = HashRow(rows[begin + i]);
      __builtin_prefetch(&buckets_[next_hashes[i] & (buckets_.size() - 1)]);
    }
  };
  fetch(0);
  for (int64_t begin = 0; begin < num_rows; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, num_rows - begin);
    if (size() > kMaxRows - count) {
      Truncate(size_before);
      return false;
    }
    hashes = next_hashes;
    fetch(begin + kBlockRows);
    for (int64_t i = 0; i < count; ++i) {
      numbers[begin + i] = NumberOf(rows[begin + i], hashes[i]);
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

int32_t RowIndex::NumberOf(int64_t row, uint64_t hash) {
  const uint64_t mask = buckets_.size() - 1;
  uint64_t place = hash & mask;
  for (; buckets_[place].number != 0; place = (place + 1) & mask) {
    const Bucket& bucket = buckets_[place];
    if (bucket.tag == TagOf(hash) && rows_[bucket.number - 1] == row) {
      return static_cast<int32_t>(bucket.number - 1);
    }
  }
  rows_.push_back(row);
  buckets_[place] = {TagOf(hash), static_cast<uint32_t>(rows_.size())};
  const int32_t number = static_cast<int32_t>(rows_.size() - 1);
  if (2 * rows_.size() >= buckets_.size()) {
    Grow();
  }
  return number;
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
