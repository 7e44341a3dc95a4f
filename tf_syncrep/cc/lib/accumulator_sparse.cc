#include "tf_syncrep/cc/lib/accumulator_sparse.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "tf_syncrep/cc/lib/prefetch.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tf_syncrep {
namespace {

constexpr size_t kStreamAlignment = 64;

// Copies `bytes`, a multiple of kStreamAlignment, to `to`, which has this
// alignment, without reading the old contents of `to` and without keeping the
// new ones in the cache. For arrays that are larger than the cache. It is an
// ordinary copy on processors without such stores.
void StreamCopy(const void* from, size_t bytes, void* to) {
#if defined(__SSE2__)
  const auto* const in = static_cast<const char*>(from);
  auto* const out = static_cast<char*>(to);
  for (size_t i = 0; i < bytes; i += kStreamAlignment) {
    for (size_t k = i; k < i + kStreamAlignment; k += sizeof(__m128i)) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(out + k),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k)));
    }
  }
#else
  std::memcpy(to, from, bytes);
#endif
}

// To be called once after a thread's calls of StreamCopy(), before other
// threads are told that the copies are there.
void EndStream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// A smaller part does not pay for the hand-over to another thread. For copies
// the limit is higher: the thread that is woken may run in place of the one
// that woke it, which holds the accumulator's lock.
constexpr int64_t kMinCopiedBytesPerShard = int64_t{2} << 20;
constexpr int64_t kMinElementsPerShard = 16384;
constexpr int64_t kMinSortedPerShard = 32768;

// Larger copies do not stay in the cache of most machines until they are used
// again.
constexpr size_t kMinStreamedBytes = size_t{32} << 20;

// Rows are merged when there are this many times more of them than there were
// different rows at the last merge or result. So all merges together cost time
// linear in the rows pushed.
constexpr int64_t kHeldPerMergedRow = 4;

// The overhead of a block of the heap, and the multiple to which its size is
// rounded up.
constexpr int64_t kHeapBytes = 16;
// The size of a tensor, its buffer and their owner, if the values are kept in a
// tensor.
constexpr int64_t kTensorBytes = 256;

// Rows that are read one after the other may be far apart in memory.
constexpr int64_t kPrefetchDistance = 8;

// The memory that a held gradient takes. It is much more than its elements when
// the gradient has only a row or two.
int64_t HeldGradientBytes(int64_t num_rows, int64_t value_bytes,
                          bool is_tensor) {
  const auto round_up = [](int64_t bytes, int64_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
  };
  const int64_t row_bytes = num_rows * static_cast<int64_t>(sizeof(int64_t));
  // The pieces are in a vector, which may be half empty.
  return 2 * static_cast<int64_t>(sizeof(RowsPiece)) +
         round_up(row_bytes + kHeapBytes, kHeapBytes) +
         round_up(value_bytes, kStreamAlignment) +
         (is_tensor ? kTensorBytes : 0);
}

constexpr int64_t kMaxAddedRows = 16;

// Longer rows are summed in parts, which stay in the first-level cache.
constexpr int64_t kMaxColumns = 1024;

// Each piece begins a new block of places, so that a table of the blocks says
// which piece a place is in.
constexpr int kPlaceBlockBits = 8;
constexpr int64_t kPlaceBlock = int64_t{1} << kPlaceBlockBits;

size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

template <typename T>
struct SparseGradientSum<T>::SortedRows {
  struct Piece {
    const void* values;
    const int32_t* num_gradients;  // null for a gradient
    int64_t first_place;
  };

  const Piece& PieceAt(uint32_t place) const {
    return pieces[piece_of_block[place >> kPlaceBlockBits]];
  }

  // How many gradients contain the row whose occurrences are from `begin` to
  // `end`. A gradient that repeats the row counts once.
  int32_t NumGradients(int64_t begin, int64_t end) const {
    const Piece* last = nullptr;
    int32_t result = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t place = occurrences[i].place;
      const Piece* const piece = &PieceAt(place);
      if (piece->num_gradients != nullptr) {
        result += piece->num_gradients[place - piece->first_place];
      } else if (piece != last) {
        ++result;
      }
      last = piece;
    }
    return result;
  }

  int64_t num_rows() const { return first_number_of_shard.back(); }

  Array<Piece> pieces;
  Array<int32_t> piece_of_block;
  Chunk memory;  // of the occurrences
  const RowOccurrence<uint32_t>* occurrences = nullptr;
  int64_t size = 0;
  // The rows are numbered in their order, and each shard of the occurrences has
  // those rows whose first occurrence is in it. This is the number of each
  // shard's first row, followed by the number of all rows.
  std::vector<int64_t> first_number_of_shard;
};

template <typename T>
struct SparseGradientSum<T>::ReducedRows {
  Sum Divisor(int32_t num_gradients) const {
    switch (reduction) {
      case Reduction::kMean:
        return static_cast<Sum>(num_gradients);
      case Reduction::kCountedMean:
        return static_cast<Sum>(count);
      case Reduction::kSum:
        break;
    }
    return 1;
  }

  int64_t* rows;
  T* values;               // the sums, divided as `reduction` says; or null if
  Sum* sums;               // the sums are to stay undivided
  int32_t* num_gradients;  // how many gradients had each row
  Reduction reduction;
  int64_t count;     // of all gradients
  bool is_streamed;  // whether `values` are written past the cache
};

template <typename T>
SparseGradientSum<T>::~SparseGradientSum() {
  pieces_.clear();
  copies_ = {};
  // Only rounds that ended with a result update `memory_`, not sums that were
  // merged into others or never taken.
  if (is_finished_) {
    memory_->last_copied_bytes = most_copied_bytes_;
    memory_->chunks->EndRound(most_copied_bytes_ + needed_bytes_);
  }
}

template <typename T>
bool SparseGradientSum<T>::Add(Array<int64_t> rows, int64_t row_size,
                               const OwnedBuffer& values, Sharder& sharder) {
  const int64_t num_rows = rows.size();
  if (num_rows > 0) {
    OwnedBuffer kept = values;
    const size_t value_bytes =
        static_cast<size_t>(num_rows * row_size) * sizeof(T);
    if (kept.owner == nullptr) {
      kept = Copy(values.data, value_bytes, sharder);
      if (kept.owner == nullptr) {
        return false;
      }
    }
    if (!Append<RowsPiece>({std::move(rows), std::move(kept), {}}, &pieces_)) {
      return false;
    }
    held_.Set(held_.bytes() +
              HeldGradientBytes(num_rows, static_cast<int64_t>(value_bytes),
                                values.owner != nullptr));
    num_held_rows_ += num_rows;
    row_size_ = row_size;
    MergeIfMany(sharder);
  }
  return true;
}

template <typename T>
OwnedBuffer SparseGradientSum<T>::Copy(const void* values, size_t bytes,
                                       Sharder& sharder) {
  if (copies_.buffer.owner == nullptr ||
      copies_.bytes - used_of_copies_ < bytes) {
    // The first chunk is as large as all copies of the last sum; each further
    // one doubles the memory.
    const size_t wanted =
        copied_bytes_ == 0 ? memory_->last_copied_bytes.load() : copied_bytes_;
    Chunk fresh = ChunkPool::Get(memory_->chunks, std::max(wanted, bytes));
    if (fresh.buffer.owner == nullptr) {
      fresh = ChunkPool::Get(memory_->chunks, bytes);
    }
    if (fresh.buffer.owner == nullptr) {
      return {};
    }
    copies_ = std::move(fresh);
    used_of_copies_ = 0;
  }
  char* const copy = static_cast<char*>(copies_.buffer.data) + used_of_copies_;
  const size_t taken = std::min(RoundUp(bytes, kStreamAlignment),
                                copies_.bytes - used_of_copies_);
  used_of_copies_ += taken;
  copied_bytes_ += taken;
  most_copied_bytes_ = std::max(most_copied_bytes_, copied_bytes_);
  const bool is_streamed = copies_.bytes >= kMinStreamedBytes;
  const int64_t num_shards =
      sharder.NumShards(static_cast<int64_t>(bytes), kMinCopiedBytesPerShard);
  const auto num_lines = static_cast<int64_t>(bytes / kStreamAlignment);
  sharder.Run(num_shards, [&](int64_t shard) {
    const size_t begin =
        ShardBegin(shard, num_shards, num_lines) * kStreamAlignment;
    const size_t lines_end =
        ShardBegin(shard + 1, num_shards, num_lines) * kStreamAlignment;
    const size_t end = shard + 1 == num_shards ? bytes : lines_end;
    const char* const from = static_cast<const char*>(values);
    if (is_streamed) {
      StreamCopy(from + begin, lines_end - begin, copy + begin);
      EndStream();
      std::copy(from + lines_end, from + end, copy + lines_end);
    } else {
      std::copy(from + begin, from + end, copy + begin);
    }
  });
  return {copy, copies_.buffer.owner};
}

template <typename T>
void SparseGradientSum<T>::MergeIfMany(Sharder& sharder) {
  const bool is_little =
      held_.bytes() <= min_merge_bytes_ && !memory_->budget->is_exceeded();
  if (is_little ||
      num_held_rows_ <
          kHeldPerMergedRow *
              std::max(num_merged_rows_, memory_->last_num_rows.load())) {
    return;
  }
  if (!MergePieces(sharder)) {
    // Another attempt is made only when there are many more rows.
    num_merged_rows_ = num_held_rows_;
  }
}

template <typename T>
bool SparseGradientSum<T>::MergePieces(Sharder& sharder) {
  needed_bytes_ = 0;  // The memory that earlier merges needed is reused.
  SortedRows sorted;
  if (!SortRows(sharder, &sorted)) {
    return false;
  }
  const int64_t num_rows = sorted.num_rows();
  Chunk sums =
      GetChunk(static_cast<size_t>(num_rows * row_size_) * sizeof(Sum));
  RowsPiece merged;
  if (sums.buffer.owner == nullptr || !merged.rows.Allocate(num_rows) ||
      !merged.num_gradients.Allocate(num_rows)) {
    return false;
  }
  merged.values = std::move(sums.buffer);
  ReduceRows(
      sorted,
      {merged.rows.data(), nullptr, static_cast<Sum*>(merged.values.data),
       merged.num_gradients.data(), Reduction::kSum, 1, false},
      sharder);
  pieces_.clear();
  copies_ = {};
  copied_bytes_ = 0;
  pieces_.push_back(std::move(merged));
  num_held_rows_ = num_rows;
  held_.Set(num_rows * (row_size_ * static_cast<int64_t>(sizeof(Sum)) +
                        static_cast<int64_t>(sizeof(int64_t)) +
                        static_cast<int64_t>(sizeof(int32_t))));
  num_merged_rows_ = num_held_rows_;
  return true;
}

template <typename T>
bool SparseGradientSum<T>::Finish(Reduction reduction, int64_t num_gradients,
                                  Sharder& sharder, SparseResult* result) {
  is_finished_ = true;
  SortedRows sorted;
  if (!SortRows(sharder, &sorted)) {
    return false;
  }
  const int64_t num_rows = sorted.num_rows();
  const size_t bytes = static_cast<size_t>(num_rows) *
                       static_cast<size_t>(row_size_) * sizeof(T);
  Chunk rows = GetChunk(static_cast<size_t>(num_rows) * sizeof(int64_t));
  Chunk values = GetChunk(bytes);
  if (rows.buffer.owner == nullptr || values.buffer.owner == nullptr) {
    return false;
  }
  const bool is_streamed =
      bytes >= kMinStreamedBytes &&
      static_cast<size_t>(row_size_) * sizeof(T) % kStreamAlignment == 0;
  ReduceRows(sorted,
             {static_cast<int64_t*>(rows.buffer.data),
              static_cast<T*>(values.buffer.data), nullptr, nullptr, reduction,
              num_gradients, is_streamed},
             sharder);
  memory_->last_num_rows = num_rows;
  *result = {num_rows, std::move(rows.buffer), std::move(values.buffer)};
  return true;
}

template <typename T>
bool SparseGradientSum<T>::SortRows(Sharder& sharder, SortedRows* sorted) {
  const auto size = static_cast<size_t>(num_held_rows_);
  const auto num_pieces = static_cast<int64_t>(pieces_.size());
  int64_t num_blocks = 0;
  for (const RowsPiece& piece : pieces_) {
    num_blocks += (piece.rows.size() + kPlaceBlock - 1) >> kPlaceBlockBits;
  }
  if (num_blocks > kMaxSparseRow >> kPlaceBlockBits) {
    return false;
  }
  Array<RowOccurrence<uint32_t>*> begins;
  sorted->memory = GetChunk(2 * size * sizeof(RowOccurrence<uint32_t>));
  if (sorted->memory.buffer.owner == nullptr || !begins.Allocate(num_pieces) ||
      !sorted->pieces.Allocate(num_pieces) ||
      !sorted->piece_of_block.Allocate(num_blocks)) {
    return false;
  }
  auto* const unsorted =
      static_cast<RowOccurrence<uint32_t>*>(sorted->memory.buffer.data);
  RowOccurrence<uint32_t>* begin = unsorted;
  int64_t block = 0;
  for (int64_t number = 0; number < num_pieces; ++number) {
    const RowsPiece& piece = pieces_[number];
    sorted->pieces[number] = {piece.values.data, piece.num_gradients.data(),
                              block << kPlaceBlockBits};
    begins[number] = begin;
    begin += piece.rows.size();
    for (int64_t i = 0; i < piece.rows.size(); i += kPlaceBlock) {
      sorted->piece_of_block[block++] = static_cast<int32_t>(number);
    }
  }
  const int64_t num_shards =
      sharder.NumShards(num_held_rows_, kMinSortedPerShard);
  sharder.Run(num_shards, [&](int64_t shard) {
    for (int64_t p = shard; p < num_pieces; p += num_shards) {
      const Array<int64_t>& rows = pieces_[p].rows;
      const int64_t first = sorted->pieces[p].first_place;
      for (int64_t i = 0; i < rows.size(); ++i) {
        begins[p][i] = {static_cast<uint32_t>(rows[i]),
                        static_cast<uint32_t>(first + i)};
      }
    }
  });
  sorted->size = num_held_rows_;
  sorted->occurrences =
      SortByRow(unsorted, unsorted + size, sorted->size, sharder);
  if (sorted->occurrences == nullptr) {
    return false;
  }
  CountRows(sharder, sorted);
  return true;
}

template <typename T>
void SparseGradientSum<T>::CountRows(Sharder& sharder,
                                     SortedRows* sorted) const {
  const int64_t num_shards = sharder.NumShards(
      sorted->size,
      std::max<int64_t>(kMinElementsPerShard / std::max<int64_t>(row_size_, 1),
                        1));
  std::vector<int64_t>& numbers = sorted->first_number_of_shard;
  numbers.assign(num_shards + 1, 0);
  sharder.Run(num_shards, [&](int64_t shard) {
    ForEachRow(sorted->occurrences, sorted->size,
               ShardBegin(shard, num_shards, sorted->size),
               ShardBegin(shard + 1, num_shards, sorted->size),
               [&](int64_t, int64_t) { ++numbers[shard + 1]; });
  });
  std::partial_sum(numbers.begin(), numbers.end(), numbers.begin());
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void SparseGradientSum<T>::PrefetchValues(
    const SortedRows& sorted, int64_t i) const {
  if (i >= sorted.size) {
    return;
  }
  const uint32_t at = sorted.occurrences[i].place;
  const auto& piece = sorted.PieceAt(at);
  const auto element_bytes = static_cast<int64_t>(
      piece.num_gradients == nullptr ? sizeof(T) : sizeof(Sum));
  Prefetch<PrefetchFor::kReading>(
      static_cast<const char*>(piece.values) +
          (static_cast<int64_t>(at) - piece.first_place) * row_size_ *
              element_bytes,
      row_size_ * element_bytes);
}

template <typename T>
void SparseGradientSum<T>::ReduceRows(const SortedRows& sorted,
                                      const ReducedRows& reduced,
                                      Sharder& sharder) const {
  const std::vector<int64_t>& numbers = sorted.first_number_of_shard;
  const auto num_shards = static_cast<int64_t>(numbers.size()) - 1;
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush_denormals;
    Sum scratch[kMaxColumns];
    int64_t number = numbers[shard];
    ForEachRow(sorted.occurrences, sorted.size,
               ShardBegin(shard, num_shards, sorted.size),
               ShardBegin(shard + 1, num_shards, sorted.size),
               [&](int64_t begin, int64_t end) {
                 ReduceRow(sorted, begin, end, number++, reduced, scratch);
               });
    EndStream();
  });
}

template <typename T>
void SparseGradientSum<T>::SumOccurrences(const SortedRows& sorted,
                                          int64_t begin, int64_t end,
                                          int64_t column, int64_t size,
                                          Sum* sum) const {
  const T* gradients[kMaxAddedRows];
  for (int64_t i = begin; i < end;) {
    const bool is_new = i == begin;
    int64_t num_gradients = 0;
    const Sum* merged = nullptr;
    for (; i < end && num_gradients < kMaxAddedRows && merged == nullptr; ++i) {
      if (column == 0) {
        PrefetchValues(sorted, i + kPrefetchDistance);
      }
      const uint32_t place = sorted.occurrences[i].place;
      const auto& piece = sorted.PieceAt(place);
      const int64_t from =
          (static_cast<int64_t>(place) - piece.first_place) * row_size_ +
          column;
      if (piece.num_gradients == nullptr) {
        gradients[num_gradients++] = static_cast<const T*>(piece.values) + from;
      } else {
        merged = static_cast<const Sum*>(piece.values) + from;
      }
    }
    if (num_gradients > 0) {
      loops_.add_rows(size, gradients, num_gradients, is_new, sum);
    }
    if (merged != nullptr) {
      sum_loops_.add_rows(size, &merged, 1, is_new && num_gradients == 0, sum);
    }
  }
}

template <typename T>
void SparseGradientSum<T>::ReduceRow(const SortedRows& sorted, int64_t begin,
                                     int64_t end, int64_t number,
                                     const ReducedRows& reduced,
                                     Sum* scratch) const {
  constexpr bool kIsResult = std::is_same<T, Sum>::value;
  reduced.rows[number] = static_cast<int64_t>(sorted.occurrences[begin].row);
  const int32_t num_gradients = sorted.NumGradients(begin, end);
  if (reduced.num_gradients != nullptr) {
    reduced.num_gradients[number] = num_gradients;
  }
  const Sum divisor = reduced.Divisor(num_gradients);
  for (int64_t column = 0; column < row_size_; column += kMaxColumns) {
    const int64_t size = std::min(row_size_ - column, kMaxColumns);
    const int64_t place = number * row_size_ + column;
    Sum* sum = scratch;
    if (reduced.values == nullptr) {
      sum = reduced.sums + place;
    } else if constexpr (kIsResult) {
      if (!reduced.is_streamed) {
        sum = reduced.values + place;
      }
    }
    SumOccurrences(sorted, begin, end, column, size, sum);
    if (reduced.values == nullptr) {
      continue;
    }
    if constexpr (kIsResult) {
      if (divisor != 1) {
        loops_.divide(size, divisor, sum);
      }
      if (reduced.is_streamed) {
        StreamCopy(sum, size * sizeof(T), reduced.values + place);
      }
    } else {
      loops_.divide_to(size, sum, divisor, reduced.values + place);
    }
  }
}

template <typename T>
Chunk SparseGradientSum<T>::GetChunk(size_t bytes) {
  needed_bytes_ += bytes;
  return ChunkPool::Get(memory_->chunks, bytes);
}

#define TF_SYNCREP_INSTANTIATE(T) template class SparseGradientSum<T>

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
