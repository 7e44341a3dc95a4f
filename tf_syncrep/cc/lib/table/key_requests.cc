#include "tf_syncrep/cc/lib/table/key_requests.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
#include "tf_syncrep/cc/lib/table/key_hash.h"

namespace tf_syncrep {
namespace {

// So many ids, which take 50 microseconds, are worth another thread.
constexpr int64_t kMinIdsPerThread = 4096;

// The keys of so many ids, and where they are, fit in the first-level cache.
constexpr int64_t kMaxIdsPerBucket = 1024;

// Replaces the keys of `size` ids by the distinct ones, in the order in which
// they come first. Writes the place of the key of id i to places[ids[i]]. Uses
// 2 * size slots, and the element before the keys. Returns how many distinct
// keys there are. It has no branch that depends on whether a key is new.
int64_t FindDistinct(int64_t* keys, const int32_t* ids, int64_t size,
                     uint32_t* slots, int32_t* places) {
  // A slot has the place of a key, counted from 1, or 0: there is the key that
  // is looked for, which ends the search.
  int64_t* const counted = keys - 1;
  std::fill_n(slots, 2 * size, 0);
  uint32_t num_keys = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t key = keys[i];
    counted[0] = key;
    int64_t slot = KeyBucket(HashKey(key), 2 * size);
    while (counted[slots[slot]] != key) {
      slot = slot + 1 == 2 * size ? 0 : slot + 1;
    }
    keys[num_keys] = key;
    const uint32_t is_new = slots[slot] == 0 ? 1 : 0;
    num_keys += is_new;
    slots[slot] += is_new * num_keys;
    places[ids[i]] = static_cast<int32_t>(slots[slot] - 1);
  }
  return num_keys;
}

}  // namespace

bool KeyRequests::Find(const std::vector<FeatureKeys>& features,
                       int64_t num_tables, int64_t num_parts,
                       Sharder& sharder) {
  num_tables_ = num_tables;
  feature_begins_ = {0};
  table_begins_.assign(static_cast<size_t>(num_tables) + 1, 0);
  for (const FeatureKeys& feature : features) {
    feature_begins_.push_back(feature_begins_.back() + feature.size);
    table_begins_[static_cast<size_t>(feature.table) + 1] += feature.size;
  }
  // A table with many ids has several buckets in each part, but all tables
  // hardly more than there can be places in a cache.
  const int64_t max_ids =
      std::max(kMaxIdsPerBucket, feature_begins_.back() >> kMaxBucketBits);
  for (int64_t& size : table_begins_) {
    size = 1 + size / (max_ids * num_parts);
  }
  table_begins_[0] = 0;
  std::partial_sum(table_begins_.begin(), table_begins_.end(),
                   table_begins_.begin());
  if (!Partition(features, num_parts, sharder)) {
    *this = KeyRequests();
    return false;
  }
  return true;
}

bool KeyRequests::Partition(const std::vector<FeatureKeys>& features,
                            int64_t num_parts, Sharder& sharder) {
  const int64_t num_ids = feature_begins_.back();
  const int64_t num_buckets = num_parts * table_begins_.back();
  // More shards would spend their time on counts.
  const int64_t num_shards =
      sharder.NumShards(num_ids, std::max(kMinIdsPerThread, num_buckets));
  Array<int32_t> ids;  // by bucket
  // Two for each id. First they are a copy of it, since others may change it.
  Array<uint32_t> slots;
  Array<int64_t> next;
  if (!ids.Allocate(num_ids) || !slots.Allocate(2 * num_ids) ||
      !next.Allocate(num_shards * num_buckets) ||
      !keys_.Allocate(num_ids + num_buckets) || !places_.Allocate(num_ids) ||
      !buckets_.Allocate(num_buckets + 1)) {
    return false;
  }
  const auto begin_of = [=](int64_t shard) {
    return ShardBegin(shard, num_shards, num_ids);
  };
  const KeyOwner owner(num_parts);
  sharder.Run(num_shards, [&](int64_t shard) {
    int64_t* const counts = next.data() + shard * num_buckets;
    std::fill_n(counts, num_buckets, 0);
    VisitFeatures(
        feature_begins_, begin_of(shard), begin_of(shard + 1),
        [&](int64_t number, int64_t first, int64_t last) {
          const FeatureKeys& feature = features[number];
          const int64_t begin = table_begins_[feature.table];
          const auto size =
              static_cast<uint64_t>(table_begins_[feature.table + 1] - begin);
          const auto copy = [&](const auto* given) {
            for (int64_t i = first; i < last; ++i) {
              const int64_t key = ReadOnce(&given[i]);
              const uint64_t hash = HashKey(key);
              const int64_t bucket =
                  owner(hash) * table_begins_.back() + begin +
                  static_cast<int64_t>((hash >> 32) * size >> 32);
              const int64_t id = feature_begins_[number] + i;
              std::memcpy(&slots[2 * id], &key, sizeof(key));
              places_[id] = static_cast<int32_t>(bucket);
              ++counts[bucket];
            }
          };
          feature.ids32 != nullptr ? copy(feature.ids32) : copy(feature.ids64);
          return true;
        });
  });
  PlaceBuckets(num_shards, num_buckets, next.data());
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    buckets_[bucket].first_id = next[bucket];
  }
  buckets_[num_buckets] = {num_ids, 0};
  sharder.Run(num_shards, [&](int64_t shard) {
    int64_t* const places = next.data() + shard * num_buckets;
    for (int64_t id = begin_of(shard); id < begin_of(shard + 1); ++id) {
      const auto bucket = static_cast<uint32_t>(places_[id]);
      const int64_t place = places[bucket]++;
      // The gaps are before it: each bucket has one.
      std::memcpy(&keys_[place + bucket + 1], &slots[2 * id], sizeof(int64_t));
      ids[place] = static_cast<int32_t>(id);
    }
  });
  // A shard has the buckets whose ids begin in its range.
  const auto run_buckets = [&](const auto& run) {
    const auto first_of = [&](int64_t shard) {
      const auto has_less = [](const Bucket& bucket, int64_t id) {
        return bucket.first_id < id;
      };
      return std::lower_bound(buckets_.begin(), buckets_.end() - 1,
                              begin_of(shard), has_less);
    };
    sharder.Run(num_shards, [&](int64_t shard) {
      Bucket* const end =
          shard + 1 == num_shards ? buckets_.end() - 1 : first_of(shard + 1);
      for (Bucket* bucket = first_of(shard); bucket < end; ++bucket) {
        run(*bucket, bucket->first_id, bucket[1].first_id);
      }
    });
  };
  run_buckets([&](Bucket& bucket, int64_t begin, int64_t end) {
    bucket.keys_before =
        FindDistinct(keys_.data() + FirstKey(bucket), ids.data() + begin,
                     end - begin, slots.data() + 2 * begin, places_.data());
  });
  int64_t num_keys = 0;
  for (Bucket& bucket : buckets_) {
    num_keys += std::exchange(bucket.keys_before, num_keys);
  }
  run_buckets([&](const Bucket& bucket, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      places_[ids[i]] += static_cast<int32_t>(bucket.keys_before);
    }
  });
  return true;
}

void KeyRequests::WriteRequest(int64_t part, int64_t* request) const {
  for (int64_t table = 0; table < num_tables_; ++table) {
    request[table] = KeysBefore(part, table + 1) - KeysBefore(part, table);
  }
  int64_t* next = request + num_tables_;
  for (const Bucket* bucket = &FirstBucket(part, 0);
       bucket < &FirstBucket(part + 1, 0); ++bucket) {
    next = std::copy_n(keys_.data() + FirstKey(*bucket),
                       bucket[1].keys_before - bucket->keys_before, next);
  }
}

void KeyRequests::WritePlaces(int64_t feature, int32_t* places) const {
  std::copy(places_.data() + feature_begins_[feature],
            places_.data() + feature_begins_[feature + 1], places);
}

}  // namespace tf_syncrep
