#include "tf_syncrep/cc/lib/rows/distinct_rows.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/rows/row_hash.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"

namespace tf_syncrep {
namespace {

// Ids that are worth another thread.
constexpr int64_t kMinIdsPerThread = 8192;
constexpr int32_t kEmpty = -1;

// Sets keys[i] for the ids in [begin, end) of all features' ids. Returns the
// first id that is not in its table.
template <typename Key>
BadId FindKeys(const std::vector<FeatureIds>& features,
               const std::vector<int64_t>& feature_begins,
               const RowPartition& partition, int64_t begin, int64_t end,
               Key* keys) {
  auto next =
      std::upper_bound(feature_begins.begin(), feature_begins.end(), begin);
  for (int64_t i = begin; i < end; ++next) {
    const int64_t number = next - feature_begins.begin() - 1;
    const FeatureIds& feature = features[number];
    const int64_t feature_begin = feature_begins[number];
    const int64_t last = std::min(end, *next);
    const auto find = [&](const auto* ids) -> BadId {
      for (; i < last; ++i) {
        const int64_t id = ids[i - feature_begin];
        if (id < 0 || id >= feature.vocabulary_size) {
          return {number, i - feature_begin, id};
        }
        keys[i] = static_cast<Key>(partition.Key(feature.first_row + id));
      }
      return {};
    };
    const BadId bad_id =
        feature.ids32 != nullptr ? find(feature.ids32) : find(feature.ids64);
    if (bad_id.feature >= 0) {
      return bad_id;
    }
  }
  return {};
}

// The distinct keys in [begin, end). Sets groups[i], for each key i of these,
// to the position of the key's first occurrence there, and `firsts` to these
// positions. Returns false when there is no memory.
template <typename Key>
bool FindFirsts(const Key* keys, int64_t begin, int64_t end, int32_t* groups,
                Array<int32_t>* firsts, int64_t* num_firsts) {
  *num_firsts = 0;
  // Open addressing with linear probing, at most half full.
  uint64_t num_buckets = 64;
  while (num_buckets < static_cast<uint64_t>(2 * (end - begin))) {
    num_buckets *= 2;
  }
  Array<int32_t> buckets;
  if (!buckets.Allocate(static_cast<int64_t>(num_buckets)) ||
      !firsts->Allocate(end - begin)) {
    return false;
  }
  std::fill(buckets.begin(), buckets.end(), kEmpty);
  const auto bucket_at = [&](uint64_t hash) -> int32_t& {
    return buckets[static_cast<int64_t>(hash & (num_buckets - 1))];
  };
  const auto find = [&](Key key, uint64_t hash) -> int32_t& {
    while (bucket_at(hash) != kEmpty && keys[bucket_at(hash)] != key) {
      hash++;
    }
    return bucket_at(hash);
  };
  // The buckets of a block are on their way while those before are looked into.
  constexpr int64_t kBlock = 16;
  uint64_t hashes[kBlock];
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t size = std::min(kBlock, end - block);
    for (int64_t k = 0; k < size; ++k) {
      hashes[k] = HashRow(static_cast<int64_t>(keys[block + k]));
      Prefetch<PrefetchFor::kWriting>(&bucket_at(hashes[k]), sizeof(int32_t));
    }
    for (int64_t k = 0; k < size; ++k) {
      const auto i = static_cast<int32_t>(block + k);
      int32_t& first = find(keys[i], hashes[k]);
      if (first == kEmpty) {
        first = i;
        (*firsts)[(*num_firsts)++] = i;
      }
      groups[i] = first;
    }
  }
  return true;
}

}  // namespace

DistinctRows::Status DistinctRows::Find(const std::vector<FeatureIds>& features,
                                        const RowPartition& partition,
                                        Sharder& sharder, BadId* bad_id) {
  feature_begins_ = {0};
  for (const FeatureIds& feature : features) {
    feature_begins_.push_back(feature_begins_.back() + feature.size);
  }
  num_ids_ = feature_begins_.back();
  const bool is_small = partition.begin(partition.num_shards()) <=
                        std::numeric_limits<uint32_t>::max();
  const Status status =
      is_small ? FindOf<uint32_t>(features, partition, sharder, bad_id)
               : FindOf<uint64_t>(features, partition, sharder, bad_id);
  if (status != Status::kOk) {
    *this = DistinctRows();
  }
  return status;
}

template <typename Key>
DistinctRows::Status DistinctRows::FindOf(
    const std::vector<FeatureIds>& features, const RowPartition& partition,
    Sharder& sharder, BadId* bad_id) {
  Array<Key> keys;
  if (!keys.Allocate(num_ids_) || !groups_.Allocate(num_ids_) ||
      !places_.Allocate(num_ids_)) {
    return Status::kOutOfMemory;
  }
  // One part for each thread, and none to spare: a key that two parts name is
  // found twice, and sorted twice.
  const int64_t num_parts =
      (sharder.NumShards(num_ids_, kMinIdsPerThread / 4) + 3) / 4;
  std::vector<BadId> bad_ids(num_parts);
  std::vector<Array<int32_t>> firsts(num_parts);
  std::vector<int64_t> num_firsts(num_parts);
  std::atomic<bool> has_memory{true};
  sharder.Run(num_parts, [&](int64_t part) {
    const int64_t begin = ShardBegin(part, num_parts, num_ids_);
    const int64_t end = ShardBegin(part + 1, num_parts, num_ids_);
    bad_ids[part] =
        FindKeys(features, feature_begins_, partition, begin, end, keys.data());
    if (bad_ids[part].feature < 0 &&
        !FindFirsts(keys.data(), begin, end, groups_.data(), &firsts[part],
                    &num_firsts[part])) {
      has_memory = false;
    }
  });
  for (const BadId& bad : bad_ids) {
    if (bad.feature >= 0) {
      *bad_id = bad;
      return Status::kBadId;
    }
  }
  int64_t size = 0;
  for (const int64_t number : num_firsts) {
    size += number;
  }
  Array<RowOccurrence<Key>> rows;
  Array<RowOccurrence<Key>> spare;
  if (!has_memory || !rows.Allocate(size) || !spare.Allocate(size) ||
      !keys_.Allocate(size)) {
    return Status::kOutOfMemory;
  }
  int64_t end = 0;
  for (int64_t part = 0; part < num_parts; ++part) {
    for (int64_t i = 0; i < num_firsts[part]; ++i) {
      const int32_t first = firsts[part][i];
      rows[end++] = {keys[first], static_cast<Key>(first)};
    }
  }
  const RowOccurrence<Key>* const sorted =
      SortByRow(rows.data(), spare.data(), size, sharder);
  int64_t num_rows = 0;
  ForEachRow(sorted, size, 0, size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      places_[sorted[i].place] = static_cast<int32_t>(num_rows);
    }
    keys_[num_rows++] = sorted[begin].row;
  });
  shard_begins_.clear();
  for (int64_t shard = 0; shard <= partition.num_shards(); ++shard) {
    shard_begins_.push_back(
        std::lower_bound(keys_.data(), keys_.data() + num_rows,
                         static_cast<uint64_t>(partition.begin(shard))) -
        keys_.data());
  }
  return Status::kOk;
}

template <typename Row>
void DistinctRows::WriteRows(const RowPartition& partition, int64_t shard,
                             Row* rows) const {
  const auto begin = static_cast<uint64_t>(partition.begin(shard));
  const uint64_t* const keys = keys_.data() + shard_begins_[shard];
  for (int64_t i = 0; i < num_rows(shard); ++i) {
    rows[i] = static_cast<Row>(keys[i] - begin);
  }
}

template void DistinctRows::WriteRows(const RowPartition&, int64_t,
                                      int32_t*) const;
template void DistinctRows::WriteRows(const RowPartition&, int64_t,
                                      int64_t*) const;

void DistinctRows::WritePlaces(int64_t feature, Sharder& sharder,
                               int32_t* places) const {
  const int64_t size = feature_begins_[feature + 1] - feature_begins_[feature];
  const int32_t* const groups = groups_.data() + feature_begins_[feature];
  sharder.RunParts(size, 4 * kMinIdsPerThread, /*multiple=*/1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       places[i] = places_[groups[i]];
                     }
                   });
}

}  // namespace tf_syncrep
