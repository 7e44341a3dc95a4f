#include "tf_syncrep/cc/lib/rows/row_combine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/read_once.h"

namespace tf_syncrep {
namespace {

// Numbers that are worth another thread.
constexpr int64_t kMinElementsPerThread = 32768;
// So many rows are on their way at a time.
constexpr int64_t kRowsAhead = 16;

// Within the ids, whatever becomes of row_splits after they were checked.
int64_t IdsBegin(const CombinedFeature& feature, int64_t result) {
  return feature.row_splits != nullptr
             ? std::clamp<int64_t>(ReadOnce(&feature.row_splits[result]), 0,
                                   feature.num_ids)
             : result * feature.ids_per_result;
}

// What the rows of a result are multiplied by, besides their weights.
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

// The address of each place's row.
template <typename T>
class RowAddresses {
 public:
  RowAddresses(const std::vector<ShardRows<T>>& shards, int64_t width) {
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
  // A negative place is a large one.
  bool has(int32_t place) const {
    return static_cast<uint32_t>(place) < static_cast<uint64_t>(size_);
  }
  T* operator[](int64_t place) const { return rows_[place]; }
  // The beginning of a row, where the place has one.
  TF_SYNCREP_ALWAYS_INLINE void PrefetchBegin(int32_t place) const {
    if (has(place)) {
      Prefetch<std::is_const_v<T> ? PrefetchFor::kReading
                                  : PrefetchFor::kWriting>(rows_[place], 1);
    }
  }

 private:
  int64_t size_ = 0;
  bool has_memory_ = false;
  Array<T*> rows_;
};

// A part of a feature, for one thread.
struct Piece {
  int64_t feature;
  int64_t begin;  // of its results
  int64_t end;
};

// The pieces, and after each thread's last one its number.
struct Work {
  std::vector<Piece> pieces;
  std::vector<size_t> ends;
};

Work Share(const std::vector<CombinedFeature>& features, int64_t width,
           const Sharder& sharder) {
  int64_t num_ids = 0;
  for (const CombinedFeature& feature : features) {
    num_ids += feature.num_ids + feature.num_results;
  }
  const int64_t num_shares =
      sharder.NumShards(num_ids * width, kMinElementsPerThread);
  const int64_t ids_per_share = num_ids / num_shares + 1;
  Work work;
  int64_t left = ids_per_share;
  for (size_t f = 0; f < features.size(); ++f) {
    const int64_t size = features[f].num_ids + features[f].num_results;
    const int64_t count = (size + ids_per_share - 1) / ids_per_share;
    for (int64_t i = 0; i < count; ++i) {
      const Piece piece = {static_cast<int64_t>(f),
                           ShardBegin(i, count, features[f].num_results),
                           ShardBegin(i + 1, count, features[f].num_results)};
      work.pieces.push_back(piece);
      left -= size / count;
      if (left <= 0) {
        work.ends.push_back(work.pieces.size());
        left = ids_per_share;
      }
    }
  }
  if (work.ends.empty() || work.ends.back() != work.pieces.size()) {
    work.ends.push_back(work.pieces.size());
  }
  return work;
}

template <typename T>
void CopyRow(const T* row, int64_t width, SlotType<T>* result) {
  if constexpr (std::is_same_v<T, SlotType<T>>) {
    std::memcpy(result, row, static_cast<size_t>(width) * sizeof(T));
  } else {
    for (int64_t c = 0; c < width; ++c) {
      result[c] = Widen(row[c]);
    }
  }
}

// Parts the rows among threads, in ranges that about as many ids name. Returns
// false when there is no memory.
bool PartRows(const std::vector<CombinedFeature>& features, int64_t num_rows,
              int64_t num_ids, int64_t num_threads,
              std::vector<int64_t>* begins) {
  *begins = {0};
  if (num_threads > 1) {
    Array<int32_t> counts;
    if (!counts.Allocate(num_rows)) {
      return false;
    }
    std::fill(counts.begin(), counts.end(), 0);
    for (const CombinedFeature& feature : features) {
      for (int64_t i = 0; i < feature.num_ids; ++i) {
        const int32_t place = ReadOnce(&feature.places[i]);
        if (place >= 0 && place < num_rows) {
          ++counts[place];
        }
      }
    }
    int64_t count = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
      const auto done = static_cast<int64_t>(begins->size());
      if (done < num_threads &&
          count >= ShardBegin(done, num_threads, num_ids)) {
        begins->push_back(row);
      }
      count += counts[row];
    }
  }
  begins->push_back(num_rows);
  return true;
}

// Sets the rows in [begin, end) to the sums of what the ids that name them get,
// in the order of the ids; other threads do the other rows. Returns false when
// there is no memory.
template <typename T>
bool SumRows(const RowAddresses<T>& rows, int64_t begin, int64_t end,
             int64_t width, const std::vector<CombinedFeature>& features,
             const std::vector<const SlotType<T>*>& gradients) {
  using Sum = SlotType<T>;
  constexpr bool kIsSum = std::is_same_v<T, Sum>;
  Array<Sum> scratch;
  if (!kIsSum && !scratch.Allocate((end - begin) * width)) {
    return false;
  }
  const auto sum_of = [&](int64_t row) -> Sum* {
    if constexpr (kIsSum) {
      return rows[row];
    } else {
      return scratch.data() + (row - begin) * width;
    }
  };
  for (int64_t row = begin; row < end; ++row) {
    std::fill_n(sum_of(row), width, Sum(0));
  }
  for (size_t f = 0; f < features.size(); ++f) {
    const CombinedFeature& feature = features[f];
    const bool is_combined = feature.combiner != Combiner::kNone;
    const float* const weights = is_combined ? feature.weights : nullptr;
    for (int64_t result = 0; result < feature.num_results; ++result) {
      const int64_t first = is_combined ? IdsBegin(feature, result) : result;
      const int64_t last =
          is_combined ? IdsBegin(feature, result + 1) : result + 1;
      const Sum* const gradient = gradients[f] + result * width;
      const Sum scale = Scale<Sum>(feature, first, last);
      for (int64_t id = first; id < last; ++id) {
        if (kIsSum && id + kRowsAhead < feature.num_ids) {
          rows.PrefetchBegin(ReadOnce(&feature.places[id + kRowsAhead]));
        }
        const int64_t row = ReadOnce(&feature.places[id]);
        if (row < begin || row >= end) {
          continue;
        }
        const Sum factor =
            weights == nullptr ? scale : scale * static_cast<Sum>(weights[id]);
        Sum* const sum = sum_of(row);
        for (int64_t c = 0; c < width; ++c) {
          sum[c] += factor * gradient[c];
        }
      }
    }
  }
  if constexpr (!kIsSum) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t c = 0; c < width; ++c) {
        rows[row][c] = Narrow<T>(sum_of(row)[c]);
      }
    }
  }
  return true;
}

}  // namespace

template <typename T>
bool CombineRows(const std::vector<ShardRows<const T>>& shards, int64_t width,
                 const std::vector<CombinedFeature>& features,
                 const std::vector<SlotType<T>*>& results, Sharder& sharder,
                 bool* has_memory) {
  using Sum = SlotType<T>;
  const RowAddresses<const T> rows(shards, width);
  *has_memory = rows.has_memory();
  if (!*has_memory) {
    return false;
  }
  const Work work = Share(features, width, sharder);
  std::atomic<bool> are_rows{true};
  const auto copy = [&](const CombinedFeature& feature, const Piece& piece,
                        Sum* result) {
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      if (i + kRowsAhead < piece.end) {
        rows.PrefetchBegin(ReadOnce(&feature.places[i + kRowsAhead]));
      }
      const int32_t place = ReadOnce(&feature.places[i]);
      if (!rows.has(place)) {
        return false;
      }
      CopyRow(rows[place], width, result + i * width);
    }
    return true;
  };
  const auto reduce = [&](const CombinedFeature& feature, const Piece& piece,
                          Sum* result) {
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      Sum* const sum = result + i * width;
      std::fill_n(sum, width, Sum(0));
      const int64_t begin = IdsBegin(feature, i);
      const int64_t end = IdsBegin(feature, i + 1);
      for (int64_t id = begin; id < end; ++id) {
        const int32_t place = ReadOnce(&feature.places[id]);
        if (!rows.has(place)) {
          return false;
        }
        const T* const row = rows[place];
        const Sum weight = feature.weights == nullptr
                               ? Sum(1)
                               : static_cast<Sum>(feature.weights[id]);
        for (int64_t c = 0; c < width; ++c) {
          sum[c] += weight * Widen(row[c]);
        }
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
  sharder.Run(static_cast<int64_t>(work.ends.size()), [&](int64_t share) {
    const ScopedFlushDenormals flush;
    for (size_t i = share == 0 ? 0 : work.ends[share - 1]; i < work.ends[share];
         ++i) {
      const Piece& piece = work.pieces[i];
      const CombinedFeature& feature = features[piece.feature];
      Sum* const result = results[piece.feature];
      if (!(feature.combiner == Combiner::kNone
                ? copy(feature, piece, result)
                : reduce(feature, piece, result))) {
        are_rows = false;
      }
    }
  });
  return are_rows;
}

template <typename T>
bool CombineRowsGradient(const std::vector<ShardRows<T>>& shards, int64_t width,
                         const std::vector<CombinedFeature>& features,
                         const std::vector<const SlotType<T>*>& gradients,
                         Sharder& sharder, bool* has_memory) {
  const RowAddresses<T> rows(shards, width);
  *has_memory = rows.has_memory();
  if (!*has_memory) {
    return false;
  }
  int64_t num_ids = 0;
  for (const CombinedFeature& feature : features) {
    for (int64_t i = 0; i < feature.num_ids; ++i) {
      if (!rows.has(ReadOnce(&feature.places[i]))) {
        return false;
      }
    }
    num_ids += feature.num_ids;
  }
  const int64_t num_threads =
      sharder.NumShards((num_ids + rows.size()) * width, kMinElementsPerThread);
  std::vector<int64_t> begins;
  if (!PartRows(features, rows.size(), num_ids, num_threads, &begins)) {
    *has_memory = false;
    return false;
  }
  std::atomic<bool> has_scratch{true};
  sharder.Run(static_cast<int64_t>(begins.size()) - 1, [&](int64_t thread) {
    const ScopedFlushDenormals flush;
    if (!SumRows(rows, begins[thread], begins[thread + 1], width, features,
                 gradients)) {
      has_scratch = false;
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
