#include "tf_syncrep/cc/lib/table/key_requests.h"

#include <algorithm>
#include <numeric>

#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/feature_ranges.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
#include "tf_syncrep/cc/lib/table/key_hash.h"

namespace tf_syncrep {
namespace {

// So many ids are worth another thread.
constexpr int64_t kMinIdsPerThread = 65536;

// With this bit inverted, keys have the same order as unsigned numbers as they
// have as signed ones.
constexpr uint64_t kSign = uint64_t{1} << 63;

int64_t KeyOf(const RowOccurrence<uint64_t>& id) {
  return static_cast<int64_t>(id.row ^ kSign);
}

}  // namespace

bool KeyRequests::Find(const std::vector<FeatureKeys>& features,
                       int64_t num_tables, int64_t num_parts,
                       Sharder& sharder) {
  num_tables_ = num_tables;
  feature_begins_ = {0};
  for (const FeatureKeys& feature : features) {
    feature_begins_.push_back(feature_begins_.back() + feature.size);
  }
  if (!Sort(features, num_parts, sharder)) {
    *this = KeyRequests();
    return false;
  }
  return true;
}

bool KeyRequests::Sort(const std::vector<FeatureKeys>& features,
                       int64_t num_parts, Sharder& sharder) {
  const int64_t num_ids = feature_begins_.back();
  // The upper half of a place has the table.
  Array<RowOccurrence<uint64_t>> ids;
  Array<RowOccurrence<uint64_t>> spare;
  Array<RowOccurrence<uint32_t>> buckets;
  Array<RowOccurrence<uint32_t>> spare_buckets;
  if (!ids.Allocate(num_ids) || !spare.Allocate(num_ids) ||
      !buckets.Allocate(num_ids) || !spare_buckets.Allocate(num_ids) ||
      !places_.Allocate(num_ids) ||
      !begins_.Allocate(num_parts * num_tables_ + 1)) {
    return false;
  }
  const int64_t num_shards = sharder.NumShards(num_ids, kMinIdsPerThread);
  const auto run_shards = [&](const auto& run) {
    sharder.Run(num_shards, [&](int64_t shard) {
      run(shard, ShardBegin(shard, num_shards, num_ids),
          ShardBegin(shard + 1, num_shards, num_ids));
    });
  };
  run_shards([&](int64_t /*shard*/, int64_t begin, int64_t end) {
    VisitFeatures(
        feature_begins_, begin, end,
        [&](int64_t number, int64_t first, int64_t last) {
          const FeatureKeys& feature = features[number];
          const auto table = static_cast<uint64_t>(feature.table);
          const auto copy = [&](const auto* given) {
            for (int64_t i = first; i < last; ++i) {
              const int64_t key = ReadOnce(&given[i]);
              const int64_t place = feature_begins_[number] + i;
              ids[place] = {static_cast<uint64_t>(key) ^ kSign,
                            table << 32 | static_cast<uint64_t>(place)};
            }
          };
          feature.ids32 != nullptr ? copy(feature.ids32) : copy(feature.ids64);
          return true;
        });
  });
  // Ids are sorted by key first, then by part and table, which keeps the order
  // of keys.
  const RowOccurrence<uint64_t>* const by_key =
      SortByRow(ids.data(), spare.data(), num_ids, sharder);
  if (by_key == nullptr) {
    return false;
  }
  run_shards([&](int64_t /*shard*/, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t bucket =
          KeyOwner(KeyOf(by_key[i]), num_parts) * num_tables_ +
          static_cast<int64_t>(by_key[i].place >> 32);
      buckets[i] = {static_cast<uint32_t>(bucket), static_cast<uint32_t>(i)};
    }
  });
  const RowOccurrence<uint32_t>* const sorted =
      SortByRow(buckets.data(), spare_buckets.data(), num_ids, sharder);
  if (sorted == nullptr) {
    return false;
  }
  const auto is_first = [=](int64_t i) {
    return i == 0 || sorted[i].row != sorted[i - 1].row ||
           by_key[sorted[i].place].row != by_key[sorted[i - 1].place].row;
  };
  // The number of keys that begin in the shards before each one.
  std::vector<int64_t> keys_before(num_shards + 1);
  run_shards([&](int64_t shard, int64_t begin, int64_t end) {
    int64_t num_firsts = 0;
    for (int64_t i = begin; i < end; ++i) {
      num_firsts += is_first(i);
    }
    keys_before[shard + 1] = num_firsts;
  });
  std::partial_sum(keys_before.begin(), keys_before.end(), keys_before.begin());
  if (!keys_.Allocate(keys_before.back())) {
    return false;
  }
  // Here each bucket that has keys begins at its first one. Below, the others
  // get the beginning of the next bucket.
  std::fill(begins_.begin(), begins_.end(), -1);
  run_shards([&](int64_t shard, int64_t begin, int64_t end) {
    int64_t at = keys_before[shard] - 1;
    for (int64_t i = begin; i < end; ++i) {
      const RowOccurrence<uint64_t>& id = by_key[sorted[i].place];
      if (is_first(i)) {
        keys_[++at] = KeyOf(id);
        if (i == 0 || sorted[i].row != sorted[i - 1].row) {
          begins_[sorted[i].row] = at;
        }
      }
      places_[static_cast<int64_t>(id.place & 0xffffffffu)] =
          static_cast<int32_t>(at);
    }
  });
  int64_t next = keys_.size();
  for (int64_t bucket = begins_.size() - 1; bucket >= 0; --bucket) {
    next = begins_[bucket] < 0 ? next : begins_[bucket];
    begins_[bucket] = next;
  }
  return true;
}

void KeyRequests::WriteRequest(int64_t part, int64_t* request) const {
  const int64_t* const begins = begins_.data() + part * num_tables_;
  for (int64_t table = 0; table < num_tables_; ++table) {
    request[table] = begins[table + 1] - begins[table];
  }
  std::copy(keys_.data() + begins[0], keys_.data() + begins[num_tables_],
            request + num_tables_);
}

void KeyRequests::WritePlaces(int64_t feature, int32_t* places) const {
  std::copy(places_.data() + feature_begins_[feature],
            places_.data() + feature_begins_[feature + 1], places);
}

}  // namespace tf_syncrep
