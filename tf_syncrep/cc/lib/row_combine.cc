#include "tf_syncrep/cc/lib/row_combine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {
namespace {

// Numbers that are worth another thread.
constexpr int64_t kMinElementsPerThread = 32768;

int64_t IdsBegin(const CombinedFeature& feature, int64_t result) {
  return feature.row_splits != nullptr ? feature.row_splits[result]
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
    rows_.reset(new (std::nothrow) T*[size_]);
    if (rows_ == nullptr) {
      return;
    }
    int64_t place = 0;
    for (const auto& shard : shards) {
      for (int64_t i = 0; i < shard.num_rows; ++i) {
        rows_[place++] = shard.rows + i * width;
      }
    }
  }

  bool has_memory() const { return rows_ != nullptr; }
  int64_t size() const { return size_; }
  // A negative place is a large one.
  bool has(int32_t place) const {
    return static_cast<uint32_t>(place) < static_cast<uint64_t>(size_);
  }
  T* operator[](int64_t place) const { return rows_[place]; }

 private:
  int64_t size_ = 0;
  std::unique_ptr<T*[]> rows_;
};

// A part of a feature, for one thread.
struct Piece {
  int64_t feature;
  int64_t begin;  // of its results
  int64_t end;
};

std::vector<Piece> Pieces(const std::vector<CombinedFeature>& features,
                          int64_t width, const Sharder& sharder) {
  int64_t num_ids = 0;
  for (const CombinedFeature& feature : features) {
    num_ids += feature.num_ids + feature.num_results;
  }
  const int64_t num_pieces =
      sharder.NumShards(num_ids * width, kMinElementsPerThread);
  const int64_t ids_per_piece = num_ids / num_pieces + 1;
  std::vector<Piece> pieces;
  for (size_t f = 0; f < features.size(); ++f) {
    const int64_t size = features[f].num_ids + features[f].num_results;
    const int64_t count = (size + ids_per_piece - 1) / ids_per_piece;
    for (int64_t i = 0; i < count; ++i) {
      const Piece piece = {static_cast<int64_t>(f),
                           ShardBegin(i, count, features[f].num_results),
                           ShardBegin(i + 1, count, features[f].num_results)};
      pieces.push_back(piece);
    }
  }
  return pieces;
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
  const std::vector<Piece> pieces = Pieces(features, width, sharder);
  std::atomic<bool> are_rows{true};
  const auto copy = [&](const CombinedFeature& feature, const Piece& piece,
                        Sum* result) {
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      if (!rows.has(feature.places[i])) {
        return false;
      }
      CopyRow(rows[feature.places[i]], width, result + i * width);
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
        if (!rows.has(feature.places[id])) {
          return false;
        }
        const T* const row = rows[feature.places[id]];
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
  sharder.Run(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const ScopedFlushDenormals flush;
    const Piece& piece = pieces[i];
    const CombinedFeature& feature = features[piece.feature];
    Sum* const result = results[piece.feature];
    if (!(feature.combiner == Combiner::kNone
              ? copy(feature, piece, result)
              : reduce(feature, piece, result))) {
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
  // What one id adds to its row.
  struct Share {
    const Sum* gradient;  // of the result that the id is in
    Sum factor;
  };
  const RowAddresses<T> rows(shards, width);
  const int64_t num_rows = rows.size();
  int64_t num_ids = 0;
  for (const CombinedFeature& feature : features) {
    num_ids += feature.num_ids;
  }
  const std::unique_ptr<Share[]> shares(new (std::nothrow) Share[num_ids]);
  // Where the shares of each row begin; at first, how many there are.
  const std::unique_ptr<int64_t[]> begins(new (std::nothrow)
                                              int64_t[num_rows + 1]());
  *has_memory = rows.has_memory() && shares != nullptr && begins != nullptr;
  if (!*has_memory) {
    return false;
  }
  for (const CombinedFeature& feature : features) {
    for (int64_t i = 0; i < feature.num_ids; ++i) {
      if (!rows.has(feature.places[i])) {
        return false;
      }
      ++begins[feature.places[i]];
    }
  }
  int64_t begin = 0;
  for (int64_t row = 0; row <= num_rows; ++row) {
    const int64_t count = begins[row];
    begins[row] = begin;
    begin += count;
  }
  for (size_t f = 0; f < features.size(); ++f) {
    const CombinedFeature& feature = features[f];
    const bool is_weighted =
        feature.weights != nullptr && feature.combiner != Combiner::kNone;
    for (int64_t result = 0; result < feature.num_results; ++result) {
      const int64_t first = feature.combiner == Combiner::kNone
                                ? result
                                : IdsBegin(feature, result);
      const int64_t end = feature.combiner == Combiner::kNone
                              ? result + 1
                              : IdsBegin(feature, result + 1);
      const Sum scale = Scale<Sum>(feature, first, end);
      for (int64_t id = first; id < end; ++id) {
        const Sum factor =
            is_weighted ? scale * static_cast<Sum>(feature.weights[id]) : scale;
        // Afterwards it is where those of the next row begin.
        shares[begins[feature.places[id]]++] = {gradients[f] + result * width,
                                                factor};
      }
    }
  }
  const int64_t num_shards =
      sharder.NumShards((num_ids + num_rows) * width, kMinElementsPerThread);
  // Each thread has rows of about as many shares, and each row has some.
  const auto first_row = [&](int64_t shard) {
    return std::upper_bound(begins.get(), begins.get() + num_rows,
                            ShardBegin(shard, num_shards, num_ids)) -
           begins.get();
  };
  std::vector<int64_t> shard_begins(num_shards + 1);
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    shard_begins[shard] = shard == 0 ? 0 : first_row(shard);
  }
  shard_begins[num_shards] = num_rows;
  std::atomic<bool> has_scratch{true};
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush;
    constexpr bool kIsSum = std::is_same_v<T, Sum>;
    const std::unique_ptr<Sum[]> scratch(
        kIsSum ? nullptr : new (std::nothrow) Sum[width]);
    if (!kIsSum && scratch == nullptr) {
      has_scratch = false;
      return;
    }
    for (int64_t row = shard_begins[shard]; row < shard_begins[shard + 1];
         ++row) {
      Sum* sum = scratch.get();
      if constexpr (kIsSum) {
        sum = rows[row];
      }
      std::fill_n(sum, width, Sum(0));
      for (int64_t i = row == 0 ? 0 : begins[row - 1]; i < begins[row]; ++i) {
        const Share share = shares[i];
        for (int64_t c = 0; c < width; ++c) {
          sum[c] += share.factor * share.gradient[c];
        }
      }
      if constexpr (!kIsSum) {
        for (int64_t c = 0; c < width; ++c) {
          rows[row][c] = Narrow<T>(sum[c]);
        }
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
