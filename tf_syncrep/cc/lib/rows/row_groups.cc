#include "tf_syncrep/cc/lib/rows/row_groups.h"

#include <algorithm>
#include <functional>

#include "tf_syncrep/cc/lib/rows/row_hash.h"

namespace tf_syncrep {
namespace {

constexpr int64_t kEmpty = -1;

// One row of the shard, on its way into a group.
struct Occurrence {
  int64_t row;
  int64_t position;
  uint64_t hash;
};

// The shard is chosen by the upper half of the hash, buckets by the lower.
inline int64_t ShardOf(uint64_t hash, int64_t num_shards) {
  return static_cast<int64_t>(
      ((hash >> 32) * static_cast<uint64_t>(num_shards)) >> 32);
}

std::vector<Occurrence> OccurrencesOf(const int64_t* rows, int64_t num_rows,
                                      int64_t shard, int64_t num_shards) {
  std::vector<Occurrence> occurrences;
  // A fair share and some more; a skewed gradient grows it.
  occurrences.reserve(num_rows / num_shards + num_rows / num_shards / 8 + 16);
  for (int64_t i = 0; i < num_rows; ++i) {
    const uint64_t hash = HashRow(rows[i]);
    if (ShardOf(hash, num_shards) == shard) {
      occurrences.push_back({rows[i], i, hash});
    }
  }
  return occurrences;
}

}  // namespace

std::vector<RowGroup> GroupRows(const int64_t* rows, int64_t num_rows,
                                int64_t shard, int64_t num_shards,
                                int64_t* next) {
  const std::vector<Occurrence> occurrences =
      OccurrencesOf(rows, num_rows, shard, num_shards);
  // Open addressing with linear probing, at most half full.
  uint64_t num_buckets = 16;
  while (num_buckets < 2 * occurrences.size()) {
    num_buckets *= 2;
  }
  const uint64_t mask = num_buckets - 1;
  std::vector<int64_t> buckets(num_buckets, kEmpty);  // index into `groups`
  std::vector<RowGroup> groups;
  groups.reserve(occurrences.size());
  for (const Occurrence& occurrence : occurrences) {
    uint64_t bucket = occurrence.hash & mask;
    while (buckets[bucket] != kEmpty &&
           groups[buckets[bucket]].row != occurrence.row) {
      bucket = (bucket + 1) & mask;
    }
    if (buckets[bucket] == kEmpty) {
      buckets[bucket] = static_cast<int64_t>(groups.size());
      groups.push_back(
          {occurrence.row, occurrence.position, occurrence.position});
    } else {
      RowGroup& group = groups[buckets[bucket]];
      next[group.last] = occurrence.position;
      group.last = occurrence.position;
    }
  }
  return groups;
}

bool AreDistinctAndAscending(const int64_t* rows, int64_t num_rows) {
  return std::adjacent_find(rows, rows + num_rows,
                            std::greater_equal<int64_t>()) == rows + num_rows;
}

}  // namespace tf_syncrep
