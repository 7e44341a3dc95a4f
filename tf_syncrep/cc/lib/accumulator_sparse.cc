#include "tf_syncrep/cc/lib/accumulator_sparse.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "tf_syncrep/cc/lib/row_order.h"

namespace tf_syncrep {
namespace {

// Below this a hand-over to another thread does not pay.
constexpr int64_t kMinAddedPerShard = int64_t{1} << 17;
constexpr int64_t kMinElementsPerShard = 16384;
constexpr int64_t kMinRowsPerShard = 64;

// The sums of consecutive rows may be far apart in memory.
constexpr int64_t kPrefetchDistance = 8;
constexpr int64_t kCacheLineBytes = 64;

// Sizes of the chunks that sums are in.
constexpr size_t kMinChunkBytes = size_t{64} << 10;
constexpr size_t kMaxChunkBytes = size_t{8} << 20;

// Shards of an addition take turns in blocks of so many sums, which lie next to
// each other if their rows came together.
inline int64_t ShardOf(int32_t number, int64_t num_shards) {
  constexpr int kBlockBits = 8;
  return num_shards == 1 ? 0 : (number >> kBlockBits) % num_shards;
}

void PrefetchBytes(const void* data, int64_t bytes) {
  // The hardware follows on its own after a few lines.
  const int64_t end = std::min(bytes, 8 * kCacheLineBytes);
  for (int64_t i = 0; i < end; i += kCacheLineBytes) {
    __builtin_prefetch(static_cast<const char*>(data) + i);
  }
}

}  // namespace

template <typename T>
SparseGradientSum<T>::~SparseGradientSum() {
  memory_->chunks.EndRound(std::move(chunks_));
  // One round with many rows does not hold memory for ever.
  constexpr size_t kMaxTimesKept = 16;
  std::vector<RowSum>& sums = rows_->sums;
  const bool is_kept = sums.capacity() <= kMaxTimesKept * sums.size();
  sums.clear();
  rows_->index.Clear();
  if (is_kept) {
    memory_->row_sums.Return(std::move(rows_));
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
  if (!MakeSums(row_size)) {
    index.Truncate(num_sums_before);
    return false;
  }
  row_size_ = row_size;
  const int32_t gradient = ++num_gradients_;
  RowSum* const sums = rows_->sums.data();
  const int64_t sum_bytes = row_size * static_cast<int64_t>(sizeof(Sum));
  const int64_t num_shards =
      sharder.NumShards(num_rows * row_size, kMinAddedPerShard);
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush_denormals;
    int64_t next_fetch = 0;
    for (int64_t i = 0; i < num_rows;) {
      const int64_t fetch_end = std::min(i + kPrefetchDistance, num_rows);
      for (; next_fetch < fetch_end; ++next_fetch) {
        FetchSums(numbers, next_fetch, num_rows, num_sums_before, sum_bytes);
      }
      // Of equal rows all are one shard's, which adds them in their order.
      if (ShardOf(numbers[i], num_shards) != shard) {
        ++i;
        continue;
      }
      RowSum& sum = sums[numbers[i]];
      if (sum.num_gradients > 0) {
        loops_.add(row_size, values + i * row_size, sum.values);
        // A row that occurs several times in one gradient counts once.
        sum.num_gradients += sum.last_gradient != gradient;
        sum.last_gradient = gradient;
        ++i;
        continue;
      }
      // New rows have their sums side by side: copied at once.
      const int64_t begin = i;
      do {
        RowSum& next = sums[numbers[i]];
        next.num_gradients = 1;
        next.last_gradient = gradient;
        ++i;
      } while (i < num_rows && numbers[i] == numbers[i - 1] + 1 &&
               ShardOf(numbers[i], num_shards) == shard &&
               sums[numbers[i]].num_gradients == 0 &&
               sums[numbers[i]].values == sum.values + (i - begin) * row_size);
      loops_.set((i - begin) * row_size, values + begin * row_size, sum.values);
    }
  });
  return true;
}

template <typename T>
void SparseGradientSum<T>::FetchSums(const int32_t* numbers, int64_t i,
                                     int64_t num_rows, int64_t num_sums_before,
                                     int64_t sum_bytes) const {
  const RowSum* const sums = rows_->sums.data();
  const int64_t next = i + kPrefetchDistance;
  if (next < num_rows && numbers[next] < num_sums_before) {
    __builtin_prefetch(&sums[numbers[next]]);
  }
  if (numbers[i] < num_sums_before) {
    PrefetchBytes(sums[numbers[i]].values, sum_bytes);
  }
}

template <typename T>
void SparseGradientSum<T>::Merge(GradientSum& other, Sharder& /*sharder*/) {
  const ScopedFlushDenormals flush_denormals;
  auto& newer = static_cast<SparseGradientSum&>(other);
  const std::vector<int64_t>& rows = newer.rows_->index.rows();
  if (rows.empty()) {
    return;
  }
  std::vector<RowSum>& sums = rows_->sums;
  std::vector<int32_t>& numbers = rows_->numbers;
  const size_t num_sums_before = sums.size();
  numbers.resize(rows.size());
  if (!rows_->index.Insert(rows.data(), newer.rows_->index.size(),
                           numbers.data())) {
    error_ = "there are too many rows";
    return;
  }
  sums.resize(rows_->index.rows().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    RowSum& sum = sums[numbers[i]];
    const RowSum& more = newer.rows_->sums[i];
    if (static_cast<size_t>(numbers[i]) >= num_sums_before) {
      sum = {more.values, more.num_gradients, 0};
    } else {
      sum_loops_.add(newer.row_size_, more.values, sum.values);
      sum.num_gradients += more.num_gradients;
    }
  }
  row_size_ = newer.row_size_;
  num_gradients_ += newer.num_gradients_;
  // The last chunk of this sum stays the last, or there is none.
  if (chunks_.empty()) {
    used_bytes_ = newer.used_bytes_;
  }
  for (Chunk& chunk : chunks_) {
    newer.chunks_.push_back(std::move(chunk));
  }
  chunks_ = std::move(newer.chunks_);
  newer.chunks_.clear();
}

template <typename T>
bool SparseGradientSum<T>::MakeSums(int64_t row_size) {
  const size_t bytes = static_cast<size_t>(row_size) * sizeof(Sum);
  std::vector<RowSum>& sums = rows_->sums;
  const size_t num_sums_before = sums.size();
  const size_t num_sums = rows_->index.rows().size();
  while (sums.size() < num_sums) {
    const size_t num_missing = num_sums - sums.size();
    size_t free_bytes =
        chunks_.empty() ? 0 : chunks_.back().bytes - used_bytes_;
    if (chunks_.empty() || free_bytes < bytes) {
      // Each chunk is twice the last, so that a small variable takes little and
      // a large one has few chunks.
      const size_t last_bytes = chunks_.empty() ? 0 : chunks_.back().bytes;
      Chunk chunk = memory_->chunks.Get(
          std::max<size_t>(bytes, 1),
          std::min(
              std::max({kMinChunkBytes, 2 * last_bytes, bytes * num_missing}),
              kMaxChunkBytes));
      if (chunk.data == nullptr) {
        sums.resize(num_sums_before);
        return false;
      }
      free_bytes = chunk.bytes;
      used_bytes_ = 0;
      chunks_.push_back(std::move(chunk));
    }
    const size_t count =
        bytes == 0 ? num_missing : std::min(num_missing, free_bytes / bytes);
    char* const begin =
        static_cast<char*>(chunks_.back().data.get()) + used_bytes_;
    for (size_t i = 0; i < count; ++i) {
      sums.push_back({reinterpret_cast<Sum*>(begin + i * bytes), 0, 0});
    }
    used_bytes_ += count * bytes;
  }
  return true;
}

template <typename T>
bool SparseGradientSum<T>::Finish(
    Reduction reduction, int64_t num_gradients,
    const std::function<bool(int64_t num_rows, SparseResult<T>*)>& allocate,
    Sharder& sharder) {
  const std::vector<int64_t>& rows = rows_->index.rows();
  const RowSum* const sums = rows_->sums.data();
  const int64_t num_rows = rows_->index.size();
  SparseResult<T> result;
  if (num_rows == 0) {
    return allocate(0, &result);
  }
  const size_t scratch_bytes =
      2 * static_cast<size_t>(num_rows) * sizeof(RowOccurrence);
  Chunk scratch = memory_->chunks.Get(scratch_bytes, scratch_bytes);
  if (scratch.data == nullptr) {
    return false;
  }
  auto* const unsorted = static_cast<RowOccurrence*>(scratch.data.get());
  chunks_.push_back(std::move(scratch));
  for (int64_t i = 0; i < num_rows; ++i) {
    unsorted[i] = {rows[i], static_cast<uint64_t>(i)};
  }
  const RowOccurrence* const sorted =
      SortByRow(unsorted, unsorted + num_rows, num_rows, sharder);
  if (!allocate(num_rows, &result)) {
    return false;
  }
  const int64_t sum_bytes = row_size_ * static_cast<int64_t>(sizeof(Sum));
  const int64_t num_shards = sharder.NumShards(
      num_rows, std::max(kMinElementsPerShard / std::max<int64_t>(row_size_, 1),
                         kMinRowsPerShard));
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush_denormals;
    const int64_t begin = num_rows / num_shards * shard;
    const int64_t end = shard + 1 == num_shards
                            ? num_rows
                            : num_rows / num_shards * (shard + 1);
    for (int64_t i = begin; i < end; ++i) {
      if (i + 2 * kPrefetchDistance < end) {
        __builtin_prefetch(&sums[sorted[i + 2 * kPrefetchDistance].place]);
      }
      if (i + kPrefetchDistance < end) {
        PrefetchBytes(sums[sorted[i + kPrefetchDistance].place].values,
                      sum_bytes);
      }
      const RowSum& sum = sums[sorted[i].place];
      result.rows[i] = sorted[i].row;
      Sum divisor = 1;
      if (reduction == Reduction::kCountedMean) {
        divisor = static_cast<Sum>(num_gradients);
      } else if (reduction == Reduction::kMean) {
        divisor = static_cast<Sum>(sum.num_gradients);
      }
      T* const out = result.values + i * row_size_;
      if constexpr (std::is_same<T, Sum>::value) {
        if (divisor == 1) {
          loops_.set(row_size_, sum.values, out);
          continue;
        }
      }
      loops_.divide_to(row_size_, sum.values, divisor, out);
    }
  });
  return true;
}

#define TF_SYNCREP_INSTANTIATE(T) template class SparseGradientSum<T>

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
