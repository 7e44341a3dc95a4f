#include "tf_syncrep/cc/lib/rows/distinct_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"

namespace tf_syncrep {
namespace {

// Fewer ids are not worth another thread.
constexpr int64_t kMinIdsPerThread = 65536;

// Sets ids[i] to the key and the position of each id in [begin, end) of all
// features' ids. Each id is read once, since others may change it meanwhile.
// Returns the first id that is not in its table.
template <typename Key>
BadId FindKeys(const std::vector<FeatureIds>& features,
               const std::vector<int64_t>& feature_begins,
               const RowPartition& partition, int64_t begin, int64_t end,
               RowOccurrence<Key>* ids) {
  BadId bad_id;
  VisitFeatures(
      feature_begins, begin, end,
      [&](int64_t number, int64_t first, int64_t last) {
        const FeatureIds& feature = features[number];
        const auto find = [&](const auto* given) {
          for (int64_t i = first; i < last; ++i) {
            const int64_t id = ReadOnce(&given[i]);
            if (id < 0 || id >= feature.vocabulary_size) {
              bad_id = {number, i, id};
              return false;
            }
            const int64_t position = feature_begins[number] + i;
            ids[position] = {
                static_cast<Key>(partition.Key(feature.first_row + id)),
                static_cast<Key>(position)};
          }
          return true;
        };
        return feature.ids32 != nullptr ? find(feature.ids32)
                                        : find(feature.ids64);
      });
  return bad_id;
}

}  // namespace

DistinctRows::Status DistinctRows::Find(const std::vector<FeatureIds>& features,
                                        const RowPartition& partition,
                                        Sharder& sharder, BadId* bad_id) {
  feature_begins_ = {0};
  for (const FeatureIds& feature : features) {
    feature_begins_.push_back(feature_begins_.back() + feature.size);
  }
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
  const int64_t num_ids = feature_begins_.back();
  Array<RowOccurrence<Key>> ids;
  Array<RowOccurrence<Key>> spare;
  if (!ids.Allocate(num_ids) || !spare.Allocate(num_ids) ||
      !places_.Allocate(num_ids)) {
    return Status::kOutOfMemory;
  }
  const int64_t num_parts = sharder.NumShards(num_ids, kMinIdsPerThread);
  const auto run_parts = [&](const auto& run) {
    sharder.Run(num_parts, [&](int64_t part) {
      run(part, ShardBegin(part, num_parts, num_ids),
          ShardBegin(part + 1, num_parts, num_ids));
    });
  };
  std::vector<BadId> bad_ids(num_parts);
  run_parts([&](int64_t part, int64_t begin, int64_t end) {
    bad_ids[part] =
        FindKeys(features, feature_begins_, partition, begin, end, ids.data());
  });
  for (const BadId& bad : bad_ids) {
    if (bad.feature >= 0) {
      *bad_id = bad;
      return Status::kBadId;
    }
  }
  const RowOccurrence<Key>* const sorted =
      SortByRow(ids.data(), spare.data(), num_ids, sharder);
  if (sorted == nullptr) {
    return Status::kOutOfMemory;
  }
  const auto is_first = [=](int64_t i) {
    return i == 0 || sorted[i].row != sorted[i - 1].row;
  };
  // The number of rows that begin in the parts before each part.
  std::vector<int64_t> rows_before(num_parts + 1);
  run_parts([&](int64_t part, int64_t begin, int64_t end) {
    int64_t num_firsts = 0;
    for (int64_t i = begin; i < end; ++i) {
      num_firsts += is_first(i);
    }
    rows_before[part + 1] = num_firsts;
  });
  std::partial_sum(rows_before.begin(), rows_before.end(), rows_before.begin());
  if (!keys_.Allocate(rows_before.back())) {
    return Status::kOutOfMemory;
  }
  run_parts([&, keys = keys_.data(), places = places_.data()](
                int64_t part, int64_t begin, int64_t end) {
    int64_t row = rows_before[part] - 1;
    for (int64_t i = begin; i < end; ++i) {
      if (is_first(i)) {
        keys[++row] = sorted[i].row;
      }
      places[sorted[i].place] = static_cast<int32_t>(row);
    }
  });
  shard_begins_.clear();
  for (int64_t shard = 0; shard <= partition.num_shards(); ++shard) {
    shard_begins_.push_back(
        std::lower_bound(keys_.begin(), keys_.end(),
                         static_cast<uint64_t>(partition.begin(shard))) -
        keys_.begin());
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

void DistinctRows::WritePlaces(int64_t feature, int32_t* places) const {
  std::copy(places_.data() + feature_begins_[feature],
            places_.data() + feature_begins_[feature + 1], places);
}

}  // namespace tf_syncrep
