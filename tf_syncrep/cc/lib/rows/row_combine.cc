#include "tf_syncrep/cc/lib/rows/row_combine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/gradient_loops.h"
#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/read_once.h"
#include "tf_syncrep/cc/lib/rows/feature_ranges.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"

namespace tf_syncrep {
namespace {

// How many numbers are worth another thread. There are two values: for threads
// that need not be told which numbers are their own, and for those that must
// be.
constexpr int64_t kMinElementsPerThread = 131072;
constexpr int64_t kMinElementsPerPiece = 262144;
constexpr int64_t kMinIdsPerThread = 65536;
constexpr int64_t kRowsAhead = 16;
// Sums of this many bytes stay in the second-level cache.
constexpr int64_t kBinBytes = 131072;

// Where the ids of a result begin. It is always within the ids, and the last
// result ends with the ids, even if others change row_splits after they were
// checked.
int64_t IdsBegin(const CombinedFeature& feature, int64_t result) {
  if (feature.row_splits == nullptr) {
    return result * feature.ids_per_result;
  }
  return result == feature.num_results
             ? feature.num_ids
             : std::clamp<int64_t>(ReadOnce(&feature.row_splits[result]), 0,
                                   feature.num_ids);
}

// The factor of all rows of a result, besides their weights.
template <typename Sum>
Sum Scale(const CombinedFeature& feature, int64_t begin, int64_t end) {
  if (feature.combiner == Combiner::kNone ||
      feature.combiner == Combiner::kSum) {
    return 1;
  }
  Sum total = 0;
  if (feature.weights == nullptr) {
    total = static_cast<Sum>(end - begin);
  } else if (feature.combiner == Combiner::kMean) {
    for (int64_t i = begin; i < end; ++i) {
      total += static_cast<Sum>(feature.weights[i]);
    }
  } else {
    for (int64_t i = begin; i < end; ++i) {
      const Sum weight = static_cast<Sum>(feature.weights[i]);
      total += weight * weight;
    }
  }
  if (feature.combiner == Combiner::kSqrtn) {
    total = std::sqrt(total);
  }
  return total == 0 ? Sum(0) : 1 / total;
}

// The addresses of the rows, by place.
template <typename T>
class RowAddresses {
 public:
  RowAddresses(const std::vector<ShardRows<const T>>& shards, int64_t width) {
    for (const auto& shard : shards) {
      size_ += shard.num_rows;
    }
    has_memory_ = rows_.Allocate(size_);
    if (!has_memory_) {
      return;
    }
    int64_t place = 0;
    for (const auto& shard : shards) {
      for (int64_t i = 0; i < shard.num_rows; ++i) {
        rows_[place++] = shard.rows + i * width;
      }
    }
  }

  bool has_memory() const { return has_memory_; }
  int64_t size() const { return size_; }
  // As an unsigned number a negative place is too large.
  bool has(int32_t place) const {
    return static_cast<uint32_t>(place) < static_cast<uint64_t>(size_);
  }
  const T* operator[](int64_t place) const { return rows_[place]; }
  // Prefetches the beginning of a row, if the place has one.
  TF_SYNCREP_ALWAYS_INLINE void PrefetchBegin(int32_t place) const {
    if (has(place)) {
      Prefetch<PrefetchFor::kReading>(rows_[place], 1);
    }
  }

 private:
  int64_t size_ = 0;
  bool has_memory_ = false;
  Array<const T*> rows_;
};

// As large a part of `total` as `part` is of `whole`, rounded down.
int64_t PartOf(int64_t total, int64_t part, int64_t whole) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(total) * part /
                              whole);
}

// What one id adds to the gradient of its row.
template <typename Sum>
struct Share {
  const Sum* gradient;  // of the result that the id belongs to
  Sum factor;
  int32_t place;
};

int64_t ResultOf(const CombinedFeature& feature, int64_t id) {
  if (feature.row_splits == nullptr) {
    return id / feature.ids_per_result;
  }
  int64_t begin = 0;
  int64_t end = feature.num_results;
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    (IdsBegin(feature, middle) <= id ? begin : end) = middle;
  }
  return begin;
}

// Calls visit(i, share) for each id i in [begin, end) of all features' ids.
template <typename Sum, typename Visit>
TF_SYNCREP_ALWAYS_INLINE void VisitShares(
    const std::vector<CombinedFeature>& features,
    const std::vector<int64_t>& feature_begins,
    const std::vector<const Sum*>& gradients, int64_t width, int64_t begin,
    int64_t end, const Visit& visit) {
  VisitFeatures(
      feature_begins, begin, end,
      [&](int64_t number, int64_t first, int64_t last) {
        const CombinedFeature& feature = features[number];
        int64_t id = first;
        if (feature.combiner == Combiner::kNone) {
          for (; id < last; ++id) {
            visit(feature_begins[number] + id, gradients[number] + id * width,
                  Sum(1));
          }
        }
        for (int64_t result = id < last ? ResultOf(feature, id) : 0; id < last;
             ++result) {
          const int64_t ids_begin = IdsBegin(feature, result);
          const int64_t ids_end = IdsBegin(feature, result + 1);
          const Sum* const gradient = gradients[number] + result * width;
          const Sum scale = Scale<Sum>(feature, ids_begin, ids_end);
          for (; id < std::min(ids_end, last); ++id) {
            visit(feature_begins[number] + id, gradient,
                  feature.weights == nullptr
                      ? scale
                      : scale * static_cast<Sum>(feature.weights[id]));
          }
        }
        return true;
      });
}

// The shares of all ids, sorted by bins, which are ranges of rows. Within a bin
// the shares are in the order of features and ids.
template <typename Sum>
class BinnedShares {
 public:
  // Returns what CombineRowsGradient() returns.
  bool Find(const std::vector<CombinedFeature>& features,
            const std::vector<const Sum*>& gradients, int64_t num_rows,
            int64_t width, Sharder& sharder, bool* has_memory) {
    while (num_rows >> bin_bits_ >> kMaxBucketBits > 0 ||
           (num_rows >> bin_bits_ > 0 &&
            (width << bin_bits_) * int64_t{sizeof(Sum)} < kBinBytes)) {
      ++bin_bits_;
    }
    num_bins_ = (num_rows + rows_per_bin() - 1) >> bin_bits_;
    std::vector<int64_t> feature_begins = {0};
    for (const CombinedFeature& feature : features) {
      feature_begins.push_back(feature_begins.back() + feature.num_ids);
    }
    const int64_t num_ids = feature_begins.back();
    const int64_t num_parts = sharder.NumShards(num_ids, kMinIdsPerThread);
    Array<int32_t> places;
    *has_memory = places.Allocate(num_ids) && shares_.Allocate(num_ids) &&
                  nexts_.Allocate(num_parts * num_bins_);
    if (!*has_memory) {
      return false;
    }
    const auto run_parts = [&](const auto& run) {
      sharder.Run(num_parts, [&](int64_t part) {
        const ScopedFlushDenormals flush;
        run(nexts_.data() + part * num_bins_,
            ShardBegin(part, num_parts, num_ids),
            ShardBegin(part + 1, num_parts, num_ids));
      });
    };
    std::atomic<bool> are_rows{true};
    run_parts([&](int64_t* counts, int64_t begin, int64_t end) {
      std::fill_n(counts, num_bins_, 0);
      const auto count = [&](int64_t number, int64_t first, int64_t last) {
        int32_t* const copies = places.data() + feature_begins[number];
        for (int64_t id = first; id < last; ++id) {
          // The place is read once, since others may change it meanwhile.
          const int32_t place = ReadOnce(&features[number].places[id]);
          if (place < 0 || place >= num_rows) {
            return false;
          }
          copies[id] = place;
          ++counts[place >> bin_bits_];
        }
        return true;
      };
      if (!VisitFeatures(feature_begins, begin, end, count)) {
        are_rows = false;
      }
    });
    if (!are_rows) {
      return false;
    }
    PlaceBuckets(num_parts, num_bins_, nexts_.data());
    run_parts([&](int64_t* nexts, int64_t begin, int64_t end) {
      VisitShares(features, feature_begins, gradients, width, begin, end,
                  [&](int64_t i, const Sum* gradient, Sum factor) {
                    const int32_t place = places[i];
                    shares_[nexts[place >> bin_bits_]++] = {gradient, factor,
                                                            place};
                  });
    });
    // After the last part, its next positions are the ends of the bins.
    ends_ = nexts_.data() + (num_parts - 1) * num_bins_;
    return true;
  }

  const Array<Share<Sum>>& shares() const { return shares_; }
  int64_t rows_per_bin() const { return int64_t{1} << bin_bits_; }

  // Where the shares of a bin begin.
  int64_t begin(int64_t bin) const { return bin == 0 ? 0 : ends_[bin - 1]; }
  int64_t end(int64_t bin) const { return ends_[bin]; }

  // The first bin of each of `num_pieces` pieces, which have about as many ids
  // each.
  int64_t FirstBin(int64_t piece, int64_t num_pieces) const {
    return piece == num_pieces ? num_bins_
                               : std::lower_bound(ends_, ends_ + num_bins_,
                                                  ShardBegin(piece, num_pieces,
                                                             shares_.size())) -
                                     ends_;
  }

 private:
  int bin_bits_ = 0;
  int64_t num_bins_ = 0;
  Array<Share<Sum>> shares_;
  Array<int64_t> nexts_;
  const int64_t* ends_ = nullptr;  // of the bins, in nexts_
};

}  // namespace

template <typename T>
bool CombineRows(const std::vector<ShardRows<const T>>& shards, int64_t width,
                 const std::vector<CombinedFeature>& features,
                 const std::vector<SlotType<T>*>& results, Sharder& sharder,
                 bool* has_memory) {
  using Sum = SlotType<T>;
  const RowAddresses<T> rows(shards, width);
  *has_memory = rows.has_memory();
  if (!*has_memory) {
    return false;
  }
  const GradientLoops<T>& loops = GradientLoopsFor<T>(BestCpuLevel());
  std::atomic<bool> are_rows{true};
  const auto copy = [&](const CombinedFeature& feature, int64_t first,
                        int64_t last, Sum* result) {
    for (int64_t i = first; i < last; ++i) {
      if (i + kRowsAhead < last) {
        rows.PrefetchBegin(ReadOnce(&feature.places[i + kRowsAhead]));
      }
      const int32_t place = ReadOnce(&feature.places[i]);
      if (!rows.has(place)) {
        return false;
      }
      loops.set(width, rows[place], result + i * width);
    }
    return true;
  };
  const auto reduce = [&](const CombinedFeature& feature, int64_t first,
                          int64_t last, Sum* result) {
    for (int64_t i = first; i < last; ++i) {
      Sum* const sum = result + i * width;
      std::fill_n(sum, width, Sum(0));
      const int64_t begin = IdsBegin(feature, i);
      const int64_t end = IdsBegin(feature, i + 1);
      for (int64_t id = begin; id < end; ++id) {
        if (id + kRowsAhead < feature.num_ids) {
          rows.PrefetchBegin(ReadOnce(&feature.places[id + kRowsAhead]));
        }
        const int32_t place = ReadOnce(&feature.places[id]);
        if (!rows.has(place)) {
          return false;
        }
        const T* const row = rows[place];
        const Sum weight = feature.weights == nullptr
                               ? Sum(1)
                               : static_cast<Sum>(feature.weights[id]);
        loops.add_scaled(width, weight, row, sum);
      }
      if (feature.combiner != Combiner::kSum) {
        const Sum scale = Scale<Sum>(feature, begin, end);
        for (int64_t c = 0; c < width; ++c) {
          sum[c] *= scale;
        }
      }
    }
    return true;
  };
  // Threads share ids and results alike, and a share of a feature's is as large
  // a share of its results.
  std::vector<int64_t> begins = {0};
  for (const CombinedFeature& feature : features) {
    begins.push_back(begins.back() + feature.num_ids + feature.num_results);
  }
  const int64_t min_per_part =
      std::max<int64_t>(kMinElementsPerThread / std::max<int64_t>(width, 1), 1);
  sharder.RunParts(
      begins.back(), min_per_part, /*multiple=*/1,
      [&](int64_t begin, int64_t end) {
        const ScopedFlushDenormals flush;
        const auto visit = [&](int64_t number, int64_t first, int64_t last) {
          const CombinedFeature& feature = features[number];
          const int64_t size =
              std::max<int64_t>(begins[number + 1] - begins[number], 1);
          first = PartOf(feature.num_results, first, size);
          last = PartOf(feature.num_results, last, size);
          return feature.combiner == Combiner::kNone
                     ? copy(feature, first, last, results[number])
                     : reduce(feature, first, last, results[number]);
        };
        if (!VisitFeatures(begins, begin, end, visit)) {
          are_rows = false;
        }
      });
  return are_rows;
}

template <typename T>
bool CombineRowsGradient(const std::vector<ShardRows<T>>& shards, int64_t width,
                         const std::vector<CombinedFeature>& features,
                         const std::vector<const SlotType<T>*>& gradients,
                         Sharder& sharder, bool* has_memory) {
  using Sum = SlotType<T>;
  int64_t num_rows = 0;
  for (const auto& shard : shards) {
    num_rows += shard.num_rows;
  }
  BinnedShares<Sum> binned;
  if (!binned.Find(features, gradients, num_rows, width, sharder, has_memory)) {
    return false;
  }
  const GradientLoops<T>& loops = GradientLoopsFor<T>(BestCpuLevel());
  const GradientLoops<Sum>& of_sums = GradientLoopsFor<Sum>(BestCpuLevel());
  const Array<Share<Sum>>& shares = binned.shares();
  const int64_t num_pieces = sharder.NumShards(
      (shares.size() + num_rows) * width, kMinElementsPerPiece);
  std::atomic<bool> has_scratch{true};
  sharder.Run(num_pieces, [&](int64_t piece) {
    const ScopedFlushDenormals flush;
    Array<Sum> scratch;
    if (!scratch.Allocate(binned.rows_per_bin() * width)) {
      has_scratch = false;
      return;
    }
    auto shard = shards.begin();
    int64_t shard_begin = 0;
    const auto row_at = [&](int64_t place) {
      while (place >= shard_begin + shard->num_rows) {
        shard_begin += shard->num_rows;
        ++shard;
      }
      return shard->rows + (place - shard_begin) * width;
    };
    const int64_t last = binned.FirstBin(piece + 1, num_pieces);
    for (int64_t bin = binned.FirstBin(piece, num_pieces); bin < last; ++bin) {
      const int64_t begin = bin * binned.rows_per_bin();
      const int64_t end = std::min(num_rows, begin + binned.rows_per_bin());
      Sum* sums = scratch.data();
      if constexpr (std::is_same_v<T, Sum>) {
        // The rows are contiguous unless another shard begins among them.
        T* const first = row_at(begin);
        if (end <= shard_begin + shard->num_rows) {
          sums = first;
        }
      }
      std::fill_n(sums, (end - begin) * width, Sum(0));
      for (int64_t i = binned.begin(bin); i < binned.end(bin); ++i) {
        if (i + kRowsAhead < shares.size()) {
          Prefetch<PrefetchFor::kReading>(
              shares[i + kRowsAhead].gradient,
              static_cast<int64_t>(sizeof(Sum)) * width);
        }
        const Share<Sum>& share = shares[i];
        Sum* const sum = sums + (share.place - begin) * width;
        of_sums.add_scaled(width, share.factor, share.gradient, sum);
      }
      for (int64_t row = sums == scratch.data() ? begin : end; row < end;
           ++row) {
        loops.narrow(width, sums + (row - begin) * width, row_at(row));
      }
    }
  });
  *has_memory = has_scratch;
  return has_scratch;
}

#define TF_SYNCREP_INSTANTIATE(T)                                              \
  template bool CombineRows(const std::vector<ShardRows<const T>>&, int64_t,   \
                            const std::vector<CombinedFeature>&,               \
                            const std::vector<SlotType<T>*>&, Sharder&,        \
                            bool*);                                            \
  template bool CombineRowsGradient(const std::vector<ShardRows<T>>&, int64_t, \
                                    const std::vector<CombinedFeature>&,       \
                                    const std::vector<const SlotType<T>*>&,    \
                                    Sharder&, bool*)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

}  // namespace tf_syncrep
