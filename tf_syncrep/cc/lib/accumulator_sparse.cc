#include "tf_syncrep/cc/lib/accumulator_sparse.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tf_syncrep/cc/lib/accumulator_loops.h"
#include "tf_syncrep/cc/lib/row_order.h"

namespace tf_syncrep {
namespace {

// Rows are merged when this many times more are held than are different. A
// merge then costs no more than a seventh of what adding these rows costs
// anyway.
constexpr int64_t kHeldPerMergedRow = 8;

constexpr int64_t kMinElementsPerShard = 16384;
constexpr int64_t kMinRowsPerShard = 64;

// Rows of different gradients are far apart in memory.
constexpr int64_t kPrefetchDistance = 8;
constexpr size_t kCacheLineBytes = 64;

// A place is the number of a piece and a position in it.
constexpr int kPositionBits = 40;
constexpr uint64_t kPositionMask = (uint64_t{1} << kPositionBits) - 1;
// Well under what a place has room for.
constexpr size_t kMaxPieces = size_t{1} << 20;

// Sizes of the chunks that gradients are copied into.
constexpr size_t kMinChunkBytes = size_t{64} << 10;
constexpr size_t kMaxChunkBytes = size_t{8} << 20;

inline size_t PieceOf(uint64_t place) { return place >> kPositionBits; }
inline int64_t PositionOf(uint64_t place) {
  return static_cast<int64_t>(place & kPositionMask);
}

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

template <typename T>
void CopyElements(const T* from, int64_t size, T* to, Sharder& sharder) {
  if (size == 0) {
    return;
  }
  // A megabyte is copied sooner than another thread wakes up.
  constexpr int64_t kMinCopyPerShard = 1 << 20;
  const int64_t num_shards = sharder.NumShards(size, kMinCopyPerShard);
  sharder.Run(num_shards, [=](int64_t shard) {
    const int64_t begin = size / num_shards * shard;
    const int64_t end =
        shard + 1 == num_shards ? size : size / num_shards * (shard + 1);
    std::memcpy(to + begin, from + begin, (end - begin) * sizeof(T));
  });
}

template <typename Element>
void MoveTo(std::vector<Element>& from, std::vector<Element>& to) {
  for (Element& element : from) {
    to.push_back(std::move(element));
  }
  from.clear();
}

}  // namespace

// Sums the occurrences of each row in the pieces.
template <typename T>
class SparseGradientSum<T>::Reducer {
 public:
  // What a reducer needs to sort so many occurrences.
  static size_t ScratchBytes(int64_t num_occurrences) {
    return 2 * static_cast<size_t>(num_occurrences) * sizeof(RowOccurrence);
  }

  // `pieces` are not empty; they and `scratch` outlive the reducer.
  Reducer(const std::vector<Piece>& pieces, int64_t num_occurrences,
          int64_t row_size, const Chunk& scratch, CpuLevel cpu_level,
          Sharder& sharder)
      : pieces_(pieces),
        num_occurrences_(num_occurrences),
        row_size_(row_size),
        loops_(AccumulatorLoopsFor<T>(cpu_level)),
        sum_loops_(AccumulatorLoopsFor<Sum>(cpu_level)),
        sharder_(sharder) {
    SortOccurrences(static_cast<RowOccurrence*>(scratch.data.get()));
    CutIntoShards();
  }

  // How many different rows there are.
  int64_t num_rows() const { return shards_.back().first_result; }

  // Writes the rows, and for each its sum divided as `reduction` says.
  void WriteResult(Reduction reduction, int64_t num_gradients, int64_t* rows,
                   T* values) const {
    ForEachRow([&](int64_t i, const RowOccurrence* begin,
                   const RowOccurrence* end, Sum* scratch) {
      rows[i] = begin->row;
      Sum divisor = 1;
      if (reduction == Reduction::kCountedMean) {
        divisor = static_cast<Sum>(num_gradients);
      } else if (reduction == Reduction::kMean) {
        divisor = static_cast<Sum>(CountGradients(begin, end));
      }
      T* const out = values + i * row_size_;
      if constexpr (std::is_same<T, Sum>::value) {
        SumRow(begin, end, out);
        if (divisor != 1) {
          loops_.divide(row_size_, divisor, out);
        }
      } else {
        SumRow(begin, end, scratch);
        loops_.divide_to(row_size_, scratch, divisor, out);
      }
    });
  }

  // Writes the rows, their sums, and how many gradients had each.
  void WriteSums(int64_t* rows, Sum* sums, int32_t* num_gradients) const {
    ForEachRow([&](int64_t i, const RowOccurrence* begin,
                   const RowOccurrence* end, Sum* /*scratch*/) {
      rows[i] = begin->row;
      num_gradients[i] = static_cast<int32_t>(CountGradients(begin, end));
      SumRow(begin, end, sums + i * row_size_);
    });
  }

 private:
  // A part of the sorted occurrences, made of whole rows.
  struct Shard {
    int64_t begin;         // its first occurrence
    int64_t first_result;  // how many rows come before
  };

  void SortOccurrences(RowOccurrence* occurrences) {
    std::vector<int64_t> offsets;
    int64_t offset = 0;
    for (const Piece& piece : pieces_) {
      offsets.push_back(offset);
      offset += piece.num_rows;
    }
    const int64_t num_pieces = static_cast<int64_t>(pieces_.size());
    const int64_t num_shards = std::min(
        sharder_.NumShards(num_occurrences_, kMinElementsPerShard), num_pieces);
    sharder_.Run(num_shards, [&](int64_t shard) {
      for (int64_t p = shard; p < num_pieces; p += num_shards) {
        const Piece& piece = pieces_[p];
        RowOccurrence* const out = occurrences + offsets[p];
        const uint64_t place = static_cast<uint64_t>(p) << kPositionBits;
        for (int64_t i = 0; i < piece.num_rows; ++i) {
          out[i] = {piece.rows[i], place + static_cast<uint64_t>(i)};
        }
      }
    });
    occurrences_ = SortByRow(occurrences, occurrences + num_occurrences_,
                             num_occurrences_, sharder_);
  }

  void CutIntoShards() {
    const int64_t min_per_shard =
        std::max(kMinElementsPerShard / std::max<int64_t>(row_size_, 1),
                 kMinRowsPerShard);
    const int64_t num_shards =
        sharder_.NumShards(num_occurrences_, min_per_shard);
    shards_.resize(num_shards + 1);
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      // Where the row of the occurrence before ends.
      int64_t begin = num_occurrences_ / num_shards * shard;
      if (begin > 0) {
        const RowOccurrence* const first = occurrences_;
        begin = std::upper_bound(first + begin, first + num_occurrences_,
                                 first[begin - 1].row,
                                 [](int64_t row, const RowOccurrence& other) {
                                   return row < other.row;
                                 }) -
                first;
      }
      shards_[shard].begin = begin;
    }
    shards_[num_shards].begin = num_occurrences_;
    // Shard s counts its rows into the place of s + 1.
    shards_[0].first_result = 0;
    sharder_.Run(num_shards, [&](int64_t shard) {
      int64_t num_rows = 0;
      const int64_t end = shards_[shard + 1].begin;
      for (int64_t i = shards_[shard].begin; i < end; ++i) {
        num_rows += i == 0 || occurrences_[i].row != occurrences_[i - 1].row;
      }
      shards_[shard + 1].first_result = num_rows;
    });
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      shards_[shard + 1].first_result += shards_[shard].first_result;
    }
  }

  // Calls `visit(i, begin, end, scratch)` with the number of each row, its
  // occurrences, and memory for a row of sums, on several threads.
  template <typename Visit>
  void ForEachRow(const Visit& visit) const {
    sharder_.Run(static_cast<int64_t>(shards_.size()) - 1, [&](int64_t shard) {
      const ScopedFlushDenormals flush_denormals;
      std::vector<Sum> scratch(std::is_same<T, Sum>::value ? 0 : row_size_);
      int64_t result = shards_[shard].first_result;
      const int64_t shard_end = shards_[shard + 1].begin;
      int64_t next_prefetch = shards_[shard].begin;
      for (int64_t begin = shards_[shard].begin; begin < shard_end;) {
        int64_t end = begin + 1;
        while (end < shard_end &&
               occurrences_[end].row == occurrences_[begin].row) {
          ++end;
        }
        const int64_t prefetch_end =
            std::min(end + kPrefetchDistance, shard_end);
        for (; next_prefetch < prefetch_end; ++next_prefetch) {
          Prefetch(occurrences_[next_prefetch].place);
        }
        visit(result, occurrences_ + begin, occurrences_ + end, scratch.data());
        ++result;
        begin = end;
      }
    });
  }

  void Prefetch(uint64_t place) const {
    const Piece& piece = pieces_[PieceOf(place)];
    const int64_t offset = PositionOf(place) * row_size_;
    const char* begin =
        piece.gradient == kMerged
            ? reinterpret_cast<const char*>(piece.sums + offset)
            : reinterpret_cast<const char*>(piece.values + offset);
    // The hardware follows on its own after a few lines.
    constexpr int64_t kStep = kCacheLineBytes;
    constexpr int64_t kMaxBytes = 8 * kStep;
    const int64_t bytes = std::min<int64_t>(
        row_size_ * static_cast<int64_t>(sizeof(T)), kMaxBytes);
    for (int64_t i = 0; i < bytes; i += kStep) {
      __builtin_prefetch(begin + i);
    }
  }

  void SumRow(const RowOccurrence* begin, const RowOccurrence* end,
              Sum* sum) const {
    for (const RowOccurrence* it = begin; it != end; ++it) {
      const Piece& piece = pieces_[PieceOf(it->place)];
      const int64_t offset = PositionOf(it->place) * row_size_;
      if (piece.gradient == kMerged) {
        (it == begin ? sum_loops_.set : sum_loops_.add)(
            row_size_, piece.sums + offset, sum);
      } else {
        (it == begin ? loops_.set : loops_.add)(row_size_,
                                                piece.values + offset, sum);
      }
    }
  }

  // A row that occurs several times in one gradient counts once.
  int64_t CountGradients(const RowOccurrence* begin,
                         const RowOccurrence* end) const {
    int64_t count = 0;
    int64_t last_gradient = kMerged;
    for (const RowOccurrence* it = begin; it != end; ++it) {
      const Piece& piece = pieces_[PieceOf(it->place)];
      if (piece.gradient == kMerged) {
        count += piece.num_gradients[PositionOf(it->place)];
      } else if (piece.gradient != last_gradient) {
        ++count;
      }
      last_gradient = piece.gradient;
    }
    return count;
  }

  const std::vector<Piece>& pieces_;
  const int64_t num_occurrences_;
  const int64_t row_size_;
  const AccumulatorLoops<T>& loops_;
  const AccumulatorLoops<Sum>& sum_loops_;
  Sharder& sharder_;
  const RowOccurrence* occurrences_ = nullptr;  // ascending rows
  std::vector<Shard> shards_;  // and one more, which begins at the end
};

template <typename T>
bool SparseGradientSum<T>::Add(std::vector<int64_t> rows, int64_t row_size,
                               const T* values, Sharder& sharder) {
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  const size_t num_pieces_before = pieces_.size();
  const size_t row_bytes = static_cast<size_t>(row_size) * sizeof(T);
  // Pieces that fill up chunks; their values are copied all at once below.
  for (int64_t begin = 0; begin < num_rows;) {
    if (!MakeRoom(row_bytes, num_rows - begin)) {
      pieces_.resize(num_pieces_before);
      return false;
    }
    int64_t count = num_rows - begin;
    if (row_bytes > 0) {
      const size_t free_bytes = chunks_.back().bytes - used_bytes_;
      count = std::min(count, static_cast<int64_t>(free_bytes / row_bytes));
    }
    char* const place =
        static_cast<char*>(chunks_.back().data.get()) + used_bytes_;
    pieces_.push_back({rows.data() + begin, count, next_gradient_,
                       reinterpret_cast<const T*>(place), nullptr, nullptr});
    used_bytes_ += RoundUp(count * row_bytes, kCacheLineBytes);
    begin += count;
  }
  const T* from = values;
  for (size_t i = num_pieces_before; i < pieces_.size(); ++i) {
    const int64_t size = pieces_[i].num_rows * row_size;
    CopyElements(from, size, const_cast<T*>(pieces_[i].values), sharder);
    from += size;
  }
  for (const int64_t row : rows) {
    sketch_.Insert(row);
  }
  row_size_ = row_size;
  rows_.push_back(std::move(rows));
  num_held_rows_ += num_rows;
  ++next_gradient_;
  const int64_t held_bytes =
      num_held_rows_ * static_cast<int64_t>(row_bytes + sizeof(int64_t));
  if (held_bytes > min_merge_bytes_) {
    // The number of different rows is only estimated; against that of the last
    // merge the number held has grown for certain, and a merge pays.
    const int64_t num_different =
        std::max(sketch_.Estimate(), num_merged_rows_);
    if (num_held_rows_ >= kHeldPerMergedRow * num_different ||
        pieces_.size() >= kMaxPieces) {
      MergePieces(sharder);
    }
  }
  return true;
}

template <typename T>
void SparseGradientSum<T>::Merge(GradientSum& other, Sharder& /*sharder*/) {
  auto& newer = static_cast<SparseGradientSum&>(other);
  for (Piece& piece : newer.pieces_) {
    if (piece.gradient != kMerged) {
      piece.gradient += next_gradient_;
    }
    pieces_.push_back(piece);
  }
  newer.pieces_.clear();
  MoveTo(newer.chunks_, chunks_);
  MoveTo(newer.rows_, rows_);
  MoveTo(newer.num_gradients_, num_gradients_);
  if (!chunks_.empty()) {
    used_bytes_ = chunks_.back().bytes;  // or what `newer` used, at least
  }
  row_size_ = newer.row_size_;
  next_gradient_ += newer.next_gradient_;
  num_held_rows_ += newer.num_held_rows_;
  num_merged_rows_ = std::max(num_merged_rows_, newer.num_merged_rows_);
  sketch_.Merge(newer.sketch_);
}

template <typename T>
bool SparseGradientSum<T>::MakeRoom(size_t row_bytes, int64_t num_rows) {
  if (!chunks_.empty() && chunks_.back().bytes - used_bytes_ >= row_bytes) {
    return true;
  }
  // Each chunk is twice the last, so that a small variable takes little and a
  // large one has few chunks.
  const size_t last_bytes = chunks_.empty() ? 0 : chunks_.back().bytes;
  const size_t new_bytes =
      std::min(std::max({kMinChunkBytes, 2 * last_bytes,
                         row_bytes * static_cast<size_t>(num_rows)}),
               kMaxChunkBytes);
  Chunk chunk = pool_->Get(std::max<size_t>(row_bytes, 1), new_bytes);
  if (chunk.data == nullptr) {
    return false;
  }
  chunks_.push_back(std::move(chunk));
  used_bytes_ = 0;
  return true;
}

template <typename T>
void SparseGradientSum<T>::MergePieces(Sharder& sharder) {
  std::vector<int64_t> rows;
  std::vector<int32_t> num_gradients;
  Chunk sums;
  const size_t scratch_bytes = Reducer::ScratchBytes(num_held_rows_);
  Chunk scratch = pool_->Get(scratch_bytes, scratch_bytes);
  if (scratch.data == nullptr) {
    return;
  }
  {
    const Reducer reducer(pieces_, num_held_rows_, row_size_, scratch,
                          cpu_level_, sharder);
    const int64_t num_rows = reducer.num_rows();
    const size_t bytes = static_cast<size_t>(num_rows) *
                         static_cast<size_t>(row_size_) * sizeof(Sum);
    sums = pool_->Get(std::max<size_t>(bytes, 1), bytes);
    if (sums.data == nullptr) {
      return;
    }
    rows.resize(num_rows);
    num_gradients.resize(num_rows);
    reducer.WriteSums(rows.data(), static_cast<Sum*>(sums.data.get()),
                      num_gradients.data());
  }
  num_held_rows_ = static_cast<int64_t>(rows.size());
  num_merged_rows_ = num_held_rows_;
  pieces_.clear();
  pieces_.push_back({rows.data(), num_held_rows_, kMerged, nullptr,
                     static_cast<const Sum*>(sums.data.get()),
                     num_gradients.data()});
  rows_.clear();
  rows_.push_back(std::move(rows));
  num_gradients_.clear();
  num_gradients_.push_back(std::move(num_gradients));
  chunks_.push_back(std::move(scratch));
  pool_->Return(std::move(chunks_));
  chunks_.clear();
  used_bytes_ = sums.bytes;
  chunks_.push_back(std::move(sums));
}

template <typename T>
bool SparseGradientSum<T>::Finish(
    Reduction reduction, int64_t num_gradients,
    const std::function<bool(int64_t num_rows, SparseResult<T>*)>& allocate,
    Sharder& sharder) {
  SparseResult<T> result;
  if (pieces_.empty()) {
    return allocate(0, &result);
  }
  const size_t scratch_bytes = Reducer::ScratchBytes(num_held_rows_);
  Chunk scratch = pool_->Get(scratch_bytes, scratch_bytes);
  if (scratch.data == nullptr) {
    return false;
  }
  chunks_.push_back(std::move(scratch));
  const Reducer reducer(pieces_, num_held_rows_, row_size_, chunks_.back(),
                        cpu_level_, sharder);
  if (!allocate(reducer.num_rows(), &result)) {
    return false;
  }
  reducer.WriteResult(reduction, num_gradients, result.rows, result.values);
  pieces_.clear();
  return true;
}

#define TF_SYNCREP_INSTANTIATE(T) template class SparseGradientSum<T>

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
