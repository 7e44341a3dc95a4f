#include "tf_syncrep/cc/lib/rows/row_order.h"

#include <algorithm>
#include <utility>

#include "tf_syncrep/cc/lib/array.h"

namespace tf_syncrep {
namespace {

// Fewer occurrences, which take tens of microseconds, are not worth another
// thread.
constexpr int64_t kMinPerShard = 16384;

int BitWidth(uint64_t value) {
  return value == 0 ? 0 : 64 - __builtin_clzll(value);
}

// One pass of a stable counting sort, by the `bits` bits above `shift`. Each
// shard sorts a part of `from`; the counts of parts and buckets give each
// occurrence its place.
template <typename Row>
void SortByDigit(const RowOccurrence<Row>* from, RowOccurrence<Row>* to,
                 int64_t size, int shift, int bits, int64_t num_shards,
                 Array<int64_t>& places, Sharder& sharder) {
  const int64_t num_buckets = int64_t{1} << bits;
  const Row mask = static_cast<Row>(num_buckets - 1);
  const auto bucket_of = [=](const RowOccurrence<Row>& occurrence) {
    return (occurrence.row >> shift) & mask;
  };
  const auto begin_of = [=](int64_t shard) {
    return ShardBegin(shard, num_shards, size);
  };
  // Row s holds how many occurrences shard s has in each bucket, then where
  // they go.
  std::fill(places.begin(), places.end(), 0);
  sharder.Run(num_shards, [&](int64_t shard) {
    int64_t* const counts = places.data() + shard * num_buckets;
    const int64_t end = begin_of(shard + 1);
    for (int64_t i = begin_of(shard); i < end; ++i) {
      ++counts[bucket_of(from[i])];
    }
  });
  PlaceBuckets(num_shards, num_buckets, places.data());
  sharder.Run(num_shards, [&](int64_t shard) {
    int64_t* const next = places.data() + shard * num_buckets;
    const int64_t end = begin_of(shard + 1);
    for (int64_t i = begin_of(shard); i < end; ++i) {
      to[next[bucket_of(from[i])]++] = from[i];
    }
  });
}

}  // namespace

template <typename Row>
RowOccurrence<Row>* SortByRow(RowOccurrence<Row>* occurrences,
                              RowOccurrence<Row>* spare, int64_t size,
                              Sharder& sharder) {
  const auto has_lower_row = [](const RowOccurrence<Row>& a,
                                const RowOccurrence<Row>& b) {
    return a.row < b.row;
  };
  if (std::is_sorted(occurrences, occurrences + size, has_lower_row)) {
    return occurrences;
  }
  // Those above the highest bit in which rows differ are the same in all rows,
  // two of which differ.
  Row differences = 0;
  for (int64_t i = 0; i < size; ++i) {
    differences |= occurrences[i].row ^ occurrences[0].row;
  }
  const int bits = BitWidth(differences);
  const int num_passes =
      std::max(1, (bits + kMaxBucketBits - 1) / kMaxBucketBits);
  const int digit_bits = (bits + num_passes - 1) / num_passes;
  const int64_t num_shards = sharder.NumShards(size, kMinPerShard);
  Array<int64_t> places;
  if (!places.Allocate(num_shards << digit_bits)) {
    return nullptr;
  }
  for (int shift = 0; shift < bits; shift += digit_bits) {
    SortByDigit(occurrences, spare, size, shift, digit_bits, num_shards, places,
                sharder);
    std::swap(occurrences, spare);
  }
  return occurrences;
}

template RowOccurrence<uint32_t>* SortByRow(RowOccurrence<uint32_t>*,
                                            RowOccurrence<uint32_t>*, int64_t,
                                            Sharder&);
template RowOccurrence<uint64_t>* SortByRow(RowOccurrence<uint64_t>*,
                                            RowOccurrence<uint64_t>*, int64_t,
                                            Sharder&);

}  // namespace tf_syncrep
