#include "tf_syncrep/cc/lib/accumulator_sparse.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "tf_syncrep/cc/lib/stream_copy.h"

namespace tf_syncrep {
namespace {

// Below this a hand-over to another thread does not pay. Additions are handed
// over for more only: the thread that is woken may be run first, in place of
// the one that woke it, which holds the accumulator's lock.
constexpr int64_t kMinAddedPerShard = int64_t{1} << 19;
constexpr int64_t kMinElementsPerShard = 16384;
constexpr int64_t kMinRowsPerShard = 64;

// Sums that are read one after the other may be far apart in memory.
constexpr int64_t kPrefetchDistance = 8;
constexpr int64_t kCacheLineBytes = 64;

// Shards of an addition take turns in blocks of so many sums, which lie next to
// each other if their rows came together.
inline int64_t ShardOf(int32_t number, int64_t num_shards) {
  constexpr int kBlockBits = 8;
  return num_shards == 1 ? 0 : (number >> kBlockBits) % num_shards;
}

// More does not stay in the cache of most machines until it is used again.
constexpr size_t kMinStreamedBytes = size_t{32} << 20;

// Whether to copy rows of `row_bytes` past the cache into an array of so many
// bytes, of the pool's.
inline bool StreamsRows(size_t row_bytes, size_t array_bytes) {
  return row_bytes % kStreamAlignment == 0 && array_bytes >= kMinStreamedBytes;
}

void PrefetchBytes(const void* data, int64_t bytes) {
  // The hardware follows on its own after a few lines.
  const int64_t end = std::min(bytes, 8 * kCacheLineBytes);
  for (int64_t i = 0; i < end; i += kCacheLineBytes) {
    __builtin_prefetch(static_cast<const char*>(data) + i);
  }
}

// Calls `run(begin, end)` for parts of the rows, on all threads if these are
// many.
template <typename Run>
void ForRows(int64_t num_rows, int64_t row_size, Sharder& sharder,
             const Run& run) {
  const int64_t num_shards = sharder.NumShards(
      num_rows, std::max(kMinElementsPerShard / std::max<int64_t>(row_size, 1),
                         kMinRowsPerShard));
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush_denormals;
    const int64_t begin = num_rows / num_shards * shard;
    const int64_t end = shard + 1 == num_shards
                            ? num_rows
                            : num_rows / num_shards * (shard + 1);
    run(begin, end);
  });
}

}  // namespace

template <typename T>
SparseGradientSum<T>::~SparseGradientSum() {
  const size_t num_rows = rows_->counts.size();
  const size_t bytes = num_rows * static_cast<size_t>(row_size_) * sizeof(Sum);
  values_ = {};
  memory_->last_bytes = bytes;
  memory_->chunks->EndRound(bytes + result_bytes_);
  if (rows_->counts.capacity() <= kMaxTimesKept * num_rows) {
    memory_->rows.Return(std::move(rows_));
  }
}

template <typename T>
bool SparseGradientSum<T>::Add(const std::vector<int64_t>& rows,
                               int64_t row_size, const T* values,
                               Sharder& sharder) {
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  RowIndex& index = rows_->index;
  const int64_t num_sums_before = index.size();
  rows_->numbers.resize(rows.size());
  int32_t* const numbers = rows_->numbers.data();
  if (!index.Insert(rows.data(), num_rows, numbers)) {
    return false;
  }
  if (!MakeSums(row_size, sharder)) {
    index.Truncate(num_sums_before);
    return false;
  }
  const int32_t gradient = ++num_gradients_;
  SummedRows::Count* const counts = rows_->counts.data();
  const bool is_streamed = StreamsRows(row_size * sizeof(Sum), values_.bytes);
  const int64_t num_shards =
      sharder.NumShards(num_rows * row_size, kMinAddedPerShard);
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush_denormals;
    int64_t next_fetch = 0;
    for (int64_t i = 0; i < num_rows;) {
      const int64_t fetch_end = std::min(i + kPrefetchDistance, num_rows);
      for (; next_fetch < fetch_end; ++next_fetch) {
        FetchSums(numbers, next_fetch, num_rows, num_sums_before);
      }
      // Of equal rows all are one shard's, which adds them in their order.
      if (ShardOf(numbers[i], num_shards) != shard) {
        ++i;
        continue;
      }
      SummedRows::Count& count = counts[numbers[i]];
      if (count.num_gradients > 0) {
        loops_.add(row_size, values + i * row_size, SumOf(numbers[i]));
        // A row that occurs several times in one gradient counts once.
        count.num_gradients += count.last_gradient != gradient;
        count.last_gradient = gradient;
        ++i;
        continue;
      }
      // New rows have their sums side by side: copied at once.
      const int64_t begin = i;
      do {
        counts[numbers[i]] = {1, gradient};
        ++i;
      } while (i < num_rows && numbers[i] == numbers[i - 1] + 1 &&
               ShardOf(numbers[i], num_shards) == shard &&
               counts[numbers[i]].num_gradients == 0);
      CopyRows(values + begin * row_size, i - begin, is_streamed,
               SumOf(numbers[begin]));
    }
    EndStream();
  });
  return true;
}

template <typename T>
void SparseGradientSum<T>::FetchSums(const int32_t* numbers, int64_t i,
                                     int64_t num_rows,
                                     int64_t num_sums_before) const {
  const int64_t next = i + kPrefetchDistance;
  if (next < num_rows && numbers[next] < num_sums_before) {
    __builtin_prefetch(&rows_->counts[numbers[next]]);
  }
  if (numbers[i] < num_sums_before) {
    PrefetchBytes(SumOf(numbers[i]),
                  row_size_ * static_cast<int64_t>(sizeof(Sum)));
  }
}

template <typename T>
void SparseGradientSum<T>::Merge(GradientSum& other, Sharder& sharder) {
  const ScopedFlushDenormals flush_denormals;
  auto& newer = static_cast<SparseGradientSum&>(other);
  const std::vector<int64_t>& rows = newer.rows_->index.rows();
  if (rows.empty()) {
    return;
  }
  const int64_t num_sums_before = rows_->index.size();
  std::vector<int32_t>& numbers = rows_->numbers;
  numbers.resize(rows.size());
  if (!rows_->index.Insert(rows.data(), newer.rows_->index.size(),
                           numbers.data())) {
    error_ = "there are too many rows";
    return;
  }
  if (!MakeSums(newer.row_size_, sharder)) {
    rows_->index.Truncate(num_sums_before);
    error_ = "there is no memory for the rows";
    return;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t num_more = newer.rows_->counts[i].num_gradients;
    const Sum* const more = newer.SumOf(static_cast<int64_t>(i));
    if (numbers[i] >= num_sums_before) {
      rows_->counts[numbers[i]] = {num_more, 0};
      sum_loops_.set(row_size_, more, SumOf(numbers[i]));
    } else {
      rows_->counts[numbers[i]].num_gradients += num_more;
      sum_loops_.add(row_size_, more, SumOf(numbers[i]));
    }
  }
  num_gradients_ += newer.num_gradients_;
}

template <typename T>
bool SparseGradientSum<T>::MakeSums(int64_t row_size, Sharder& sharder) {
  row_size_ = row_size;
  const size_t row_bytes = static_cast<size_t>(row_size) * sizeof(Sum);
  const size_t num_sums_before = rows_->counts.size();
  const size_t num_sums = rows_->index.rows().size();
  const size_t bytes = num_sums * row_bytes;
  if (values_.buffer.owner == nullptr || values_.bytes < bytes) {
    // As much as the last sum took saves copies while this one grows; and each
    // copy is made for twice as many rows as the last.
    const size_t wanted = values_.buffer.owner == nullptr
                              ? memory_->last_bytes.load()
                              : 2 * values_.bytes;
    Chunk larger = ChunkPool::Get(memory_->chunks, std::max(wanted, bytes));
    if (larger.buffer.owner == nullptr) {
      larger = ChunkPool::Get(memory_->chunks, bytes);
    }
    if (larger.buffer.owner == nullptr) {
      return false;
    }
    ForRows(static_cast<int64_t>(num_sums_before), row_size, sharder,
            [&](int64_t begin, int64_t end) {
              sum_loops_.set(
                  (end - begin) * row_size, SumOf(begin),
                  static_cast<Sum*>(larger.buffer.data) + begin * row_size);
            });
    values_ = std::move(larger);
  }
  rows_->counts.resize(num_sums);
  return true;
}

template <typename T>
bool SparseGradientSum<T>::Finish(Reduction reduction, int64_t num_gradients,
                                  ResultOrder order, Sharder& sharder,
                                  SparseResult* result) {
  const std::vector<int64_t>& rows = rows_->index.rows();
  const int64_t num_rows = rows_->index.size();
  const size_t num_elements = static_cast<size_t>(num_rows * row_size_);
  Chunk result_rows = GetChunk(rows.size() * sizeof(int64_t));
  if (result_rows.buffer.owner == nullptr) {
    return false;
  }
  auto* const rows_out = static_cast<int64_t*>(result_rows.buffer.data);
  result->num_rows = num_rows;
  result->rows = std::move(result_rows.buffer);
  const bool is_in_order = order == ResultOrder::kArrival ||
                           std::is_sorted(rows.begin(), rows.end());
  if (is_in_order) {
    std::copy(rows.begin(), rows.end(), rows_out);
    if constexpr (std::is_same<T, Sum>::value) {
      ForRows(num_rows, row_size_, sharder, [&](int64_t begin, int64_t end) {
        DivideInPlace(reduction, num_gradients, begin, end);
      });
      result->values = std::move(values_.buffer);
      return true;
    }
  }
  Chunk result_values = GetChunk(num_elements * sizeof(T));
  if (result_values.buffer.owner == nullptr) {
    return false;
  }
  T* const out = static_cast<T*>(result_values.buffer.data);
  result->values = std::move(result_values.buffer);
  if (is_in_order) {
    ForRows(num_rows, row_size_, sharder, [&](int64_t begin, int64_t end) {
      DivideTo(reduction, num_gradients, begin, end, out);
    });
    return true;
  }
  const int64_t last_row = *std::max_element(rows.begin(), rows.end());
  return last_row <= int64_t{std::numeric_limits<uint32_t>::max()}
             ? WriteSorted<uint32_t>(reduction, num_gradients, sharder,
                                     rows_out, out)
             : WriteSorted<uint64_t>(reduction, num_gradients, sharder,
                                     rows_out, out);
}

template <typename T>
template <typename Row>
bool SparseGradientSum<T>::WriteSorted(Reduction reduction,
                                       int64_t num_gradients, Sharder& sharder,
                                       int64_t* rows_out, T* out) {
  const std::vector<int64_t>& rows = rows_->index.rows();
  const int64_t num_rows = rows_->index.size();
  const Chunk scratch = GetChunk(2 * rows.size() * sizeof(RowOccurrence<Row>));
  if (scratch.buffer.owner == nullptr) {
    return false;
  }
  auto* const unsorted = static_cast<RowOccurrence<Row>*>(scratch.buffer.data);
  for (int64_t i = 0; i < num_rows; ++i) {
    unsorted[i] = {static_cast<Row>(rows[i]), static_cast<Row>(i)};
  }
  const RowOccurrence<Row>* const sorted =
      SortByRow(unsorted, unsorted + num_rows, num_rows, sharder);
  ForRows(num_rows, row_size_, sharder, [&](int64_t begin, int64_t end) {
    DivideSorted(reduction, num_gradients, sorted, begin, end, rows_out, out);
  });
  return true;
}

template <typename T>
typename SparseGradientSum<T>::Sum SparseGradientSum<T>::Divisor(
    Reduction reduction, int64_t num_gradients, int64_t number) const {
  switch (reduction) {
    case Reduction::kMean:
      return static_cast<Sum>(rows_->counts[number].num_gradients);
    case Reduction::kCountedMean:
      return static_cast<Sum>(num_gradients);
    case Reduction::kSum:
      break;
  }
  return 1;
}

template <typename T>
void SparseGradientSum<T>::DivideInPlace(Reduction reduction,
                                         int64_t num_gradients, int64_t begin,
                                         int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Sum divisor = Divisor(reduction, num_gradients, i);
    if (divisor != 1) {
      loops_.divide(row_size_, divisor, SumOf(i));
    }
  }
}

template <typename T>
void SparseGradientSum<T>::DivideTo(Reduction reduction, int64_t num_gradients,
                                    int64_t begin, int64_t end, T* out) const {
  for (int64_t i = begin; i < end; ++i) {
    loops_.divide_to(row_size_, SumOf(i), Divisor(reduction, num_gradients, i),
                     out + i * row_size_);
  }
}

template <typename T>
template <typename Row>
void SparseGradientSum<T>::DivideSorted(Reduction reduction,
                                        int64_t num_gradients,
                                        const RowOccurrence<Row>* sorted,
                                        int64_t begin, int64_t end,
                                        int64_t* rows, T* out) const {
  const auto number_of = [=](int64_t i) {
    return static_cast<int64_t>(sorted[i].place);
  };
  const int64_t row_bytes = row_size_ * static_cast<int64_t>(sizeof(Sum));
  for (int64_t i = begin; i < end; ++i) {
    if (i + 2 * kPrefetchDistance < end) {
      __builtin_prefetch(&rows_->counts[number_of(i + 2 * kPrefetchDistance)]);
    }
    if (i + kPrefetchDistance < end) {
      PrefetchBytes(SumOf(number_of(i + kPrefetchDistance)), row_bytes);
    }
    rows[i] = static_cast<int64_t>(sorted[i].row);
    const Sum divisor = Divisor(reduction, num_gradients, number_of(i));
    if constexpr (std::is_same<T, Sum>::value) {
      if (divisor == 1) {
        loops_.set(row_size_, SumOf(number_of(i)), out + i * row_size_);
        continue;
      }
    }
    loops_.divide_to(row_size_, SumOf(number_of(i)), divisor,
                     out + i * row_size_);
  }
}

template <typename T>
void SparseGradientSum<T>::CopyRows(const T* rows, int64_t num_rows,
                                    bool is_streamed, Sum* to) const {
  if constexpr (std::is_same<T, Sum>::value) {
    if (is_streamed) {
      StreamCopy(rows, num_rows * row_size_ * sizeof(T), to);
      return;
    }
  }
  loops_.set(num_rows * row_size_, rows, to);
}

template <typename T>
Chunk SparseGradientSum<T>::GetChunk(size_t bytes) {
  result_bytes_ += bytes;
  return ChunkPool::Get(memory_->chunks, bytes);
}

#define TF_SYNCREP_INSTANTIATE(T) template class SparseGradientSum<T>

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
