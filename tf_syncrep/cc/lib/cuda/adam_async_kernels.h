// The CUDA kernels of AdamAsync, without their launches.
//
// nvcc compiles this file, and so does g++ behind
// tests/cc/cuda/cuda_emulation.h, where a test runs the kernels on a CPU.
// Thread blocks have kBlockThreads threads. All grids may have any number of
// blocks.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ADAM_ASYNC_KERNELS_H_
#define TF_SYNCREP_CC_LIB_CUDA_ADAM_ASYNC_KERNELS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cuda/adam_async.h"
#include "tf_syncrep/cc/lib/cuda/vectors.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rules/adam_async.h"

namespace tf_syncrep {
namespace gpu {

// --- The step, which all blocks of a launch share ----------------------------

// How many blocks of a launch have read the powers. Launches take the counters
// in turn; two launches could share a counter only if many more ran at one time
// than a GPU can run. A counter is 0 again when its launch has ended. A launch
// that is aborted leaves its counter as it is, but also an error in the CUDA
// context, which then takes no further launch; a new context begins with zeros.
inline constexpr int kNumArrivalCounters = 1024;
static __device__ unsigned int arrival_counters[kNumArrivalCounters];

// One update rule with its numbers, the same for every element of a call.
template <typename Slot>
struct AdamAsyncUpdate {
  AdamAsyncFormula formula;
  Slot step_size;
  Slot beta1;  // kRmsprop: the momentum
  Slot beta2;
  Slot epsilon;
};

// Reads the hyper-parameters and the powers; all threads of a block get the
// same. The last of the grid's blocks to come here advances the powers: all
// others have read them by then, so that no block can see a power that has
// advanced.
template <typename T>
__device__ AdamAsyncUpdate<SlotType<T>> TakeStep(const GpuAdamAsync<T>& a,
                                                 int arrival_counter) {
  using Slot = SlotType<T>;
  __shared__ AdamAsyncUpdate<Slot> update;
  if (threadIdx.x == 0) {
    update.formula = a.formula;
    update.beta1 = *a.beta1;
    update.beta2 = *a.beta2;
    update.epsilon = *a.epsilon;
    if (a.formula == AdamAsyncFormula::kRmsprop) {
      update.step_size = *a.lr;
      if (!(a.rmsprop_momentum < 0)) {
        update.beta1 = static_cast<Slot>(a.rmsprop_momentum);
      }
    } else {
      const Slot beta1_power = *a.beta1_power;
      const Slot beta2_power = *a.beta2_power;
      update.step_size = AdamAsyncStepSize(*a.lr, beta1_power, beta2_power);
      // The reads above come before the count, and the count before the writes
      // below, whichever blocks they are in.
      __threadfence();
      const unsigned int last = gridDim.x - 1;
      // Counts up to `last`, then starts again at 0.
      if (atomicInc(&arrival_counters[arrival_counter], last) == last) {
        __threadfence();
        *a.beta1_power = beta1_power * update.beta1;
        *a.beta2_power = beta2_power * update.beta2;
      }
    }
  }
  __syncthreads();
  return update;
}

// --- Elements ----------------------------------------------------------------

template <AdamAsyncFormula kFormula, int kWidth, typename T>
__device__ __forceinline__ void UpdateElements(
    const AdamAsyncUpdate<SlotType<T>>& update,
    const Vector<SlotType<T>, kWidth>& g, Vector<T, kWidth>* var,
    Vector<SlotType<T>, kWidth>* m, Vector<SlotType<T>, kWidth>* v) {
  using Slot = SlotType<T>;
  const AdamAsyncRule<Slot, kFormula> rule = {update.step_size, update.beta1,
                                              update.beta2, update.epsilon};
  TF_SYNCREP_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    Slot value = Widen(var->element[i]);
    rule.Update(g.element[i], value, m->element[i], v->element[i]);
    var->element[i] = Narrow<T>(value);
  }
}

// Updates kWidth elements in memory. All threads take the same branch.
template <int kWidth, typename T>
__device__ __forceinline__ void UpdateVector(
    const AdamAsyncUpdate<SlotType<T>>& update,
    const Vector<SlotType<T>, kWidth>& g, T* var, SlotType<T>* m,
    SlotType<T>* v) {
  auto var_vector = LoadVector<kWidth>(var);
  auto m_vector = LoadVector<kWidth>(m);
  auto v_vector = LoadVector<kWidth>(v);
  switch (update.formula) {
    case AdamAsyncFormula::kAdam:
      UpdateElements<AdamAsyncFormula::kAdam>(update, g, &var_vector, &m_vector,
                                              &v_vector);
      break;
    case AdamAsyncFormula::kNesterov:
      UpdateElements<AdamAsyncFormula::kNesterov>(update, g, &var_vector,
                                                  &m_vector, &v_vector);
      break;
    case AdamAsyncFormula::kRmsprop:
      UpdateElements<AdamAsyncFormula::kRmsprop>(update, g, &var_vector,
                                                 &m_vector, &v_vector);
      break;
  }
  StoreVector<kWidth>(var_vector, var);
  StoreVector<kWidth>(m_vector, m);
  StoreVector<kWidth>(v_vector, v);
}

// --- Dense -------------------------------------------------------------------

template <int kWidth, typename T>
__global__ __launch_bounds__(kBlockThreads) void DenseKernel(
    GpuAdamAsync<T> a, int arrival_counter, int64_t size, const T* grad) {
  const AdamAsyncUpdate<SlotType<T>> update = TakeStep(a, arrival_counter);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const int64_t num_vectors = size / kWidth;
  for (int64_t i = first; i < num_vectors; i += stride) {
    const int64_t offset = i * kWidth;
    UpdateVector(update, LoadWidened<kWidth>(grad + offset), a.var + offset,
                 a.m + offset, a.v + offset);
  }
  // The rest, which is fewer than kWidth elements.
  for (int64_t i = num_vectors * kWidth + first; i < size; i += stride) {
    UpdateVector(update, LoadWidened<1>(grad + i), a.var + i, a.m + i, a.v + i);
  }
}

// --- Sparse: the indices -----------------------------------------------------

__device__ __forceinline__ int64_t IndexAt(const GpuSparseRows& rows,
                                           int64_t i) {
  return rows.is_int64 ? static_cast<const int64_t*>(rows.indices)[i]
                       : int64_t{static_cast<const int32_t*>(rows.indices)[i]};
}

// Copies the indices into `keys` and their places into `positions`, to be
// sorted. An index that is not a row becomes num_rows, which sorts behind all
// rows. Each is read once, since others may change it meanwhile in their own
// memory. bad_index->position, which must be -1, the greatest unsigned number,
// before, is set to the first place whose index is not a row. `bad_index` may
// be null.
static __global__ __launch_bounds__(kBlockThreads) void PrepareRowsKernel(
    GpuSparseRows rows, uint64_t* keys, uint32_t* positions,
    GpuBadIndex* bad_index) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  for (int64_t i =
           static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
       i < rows.num_indices; i += stride) {
    const int64_t index = IndexAt(rows, i);
    const bool is_row = index >= 0 && index < rows.num_rows;
    keys[i] = static_cast<uint64_t>(is_row ? index : rows.num_rows);
    positions[i] = static_cast<uint32_t>(i);
    if (!is_row && bad_index != nullptr) {
      atomicMin(reinterpret_cast<unsigned long long*>(&bad_index->position),
                static_cast<unsigned long long>(i));
    }
  }
}

// How many low bits of the keys differ, all others being 0.
inline int NumKeyBits(int64_t num_rows) {
  int bits = 1;
  while (bits < 64 && (static_cast<uint64_t>(num_rows) >> bits) != 0) {
    ++bits;
  }
  return bits;
}

// --- Sparse: the rows --------------------------------------------------------

// A row with this many occurrences or more is left to a whole block instead of
// a few threads, which would take long for a row that is in every other
// gradient.
inline constexpr int kLongRow = 32;

// How the sorted occurrences are dealt out. A block takes a chunk of
// groups * places_per_group of them at a time. Where a row's occurrences begin,
// the group of `lanes` threads that has the place updates the row.
struct RowsPlan {
  int lanes;             // threads in a group: 1, 2, 4, ... 32
  int places_per_group;  // 1 to kMaxPlacesPerGroup
};

inline constexpr int kMaxPlacesPerGroup = 8;
// The beginnings of long rows are at least kLongRow places apart.
inline constexpr int kMaxLongRowsPerChunk =
    kBlockThreads * kMaxPlacesPerGroup / kLongRow;

inline RowsPlan PlanRows(int64_t num_indices, int64_t row_size, int width,
                         int max_blocks) {
  RowsPlan plan = {1, 1};
  while (plan.lanes < 32 && int64_t{plan.lanes} * width < row_size) {
    plan.lanes *= 2;
  }
  // Large chunks mix long rows and short ones, so chunks are made larger only
  // while there is one for each block.
  const int64_t groups = kBlockThreads / plan.lanes;
  while (plan.places_per_group < kMaxPlacesPerGroup &&
         groups * plan.places_per_group * 2 * max_blocks <= num_indices) {
    plan.places_per_group *= 2;
  }
  return plan;
}

inline int64_t ChunkSize(const RowsPlan& plan) {
  return int64_t{kBlockThreads / plan.lanes} * plan.places_per_group;
}

template <typename T>
struct RowsArguments {
  GpuAdamAsync<T> adam;
  GpuSparseRows rows;
  const T* grad;
  const uint64_t* keys;       // sorted
  const uint32_t* positions;  // of the keys, ascending among equal ones
  GpuBadIndex* bad_index;     // or null
  RowsPlan plan;
  int arrival_counter;
};

// The occurrences of a row are in keys[begin, begin + count); count < kLongRow.
template <int kWidth, typename T>
__device__ __forceinline__ void UpdateShortRow(
    const RowsArguments<T>& a, const AdamAsyncUpdate<SlotType<T>>& update,
    int64_t begin, int count, int lane) {
  const int64_t row_size = a.rows.row_size;
  const int64_t row = static_cast<int64_t>(a.keys[begin]) * row_size;
  const int64_t stride = int64_t{a.plan.lanes} * kWidth;
  for (int64_t i = int64_t{lane} * kWidth; i < row_size; i += stride) {
    auto sum = LoadWidened<kWidth>(a.grad + a.positions[begin] * row_size + i);
    TF_SYNCREP_UNROLL_BY_4
    for (int j = 1; j < count; ++j) {
      const auto g =
          LoadWidened<kWidth>(a.grad + a.positions[begin + j] * row_size + i);
      TF_SYNCREP_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        sum.element[k] += g.element[k];
      }
    }
    UpdateVector(update, sum, a.adam.var + row + i, a.adam.m + row + i,
                 a.adam.v + row + i);
  }
}

// Returns the end of the run of keys that begins at `begin`. All threads of the
// block call it. Each turn divides the remaining range by the number of
// threads.
__device__ inline int64_t EndOfRow(const uint64_t* keys, int64_t begin,
                                   int64_t num_keys) {
  const uint64_t key = keys[begin];
  int64_t low = begin;      // keys[low] is `key`
  int64_t high = num_keys;  // and keys[high] is not, or is no more
  int64_t step = 1;         // most rows end within the first turn
  do {
    const int64_t probe = low + step * (threadIdx.x + 1);
    const int equal = __syncthreads_count(probe < high && keys[probe] == key);
    low += step * equal;
    if (equal < kBlockThreads && low + step < high) {
      high = low + step;
    }
    step = (high - low + kBlockThreads - 1) / kBlockThreads;
  } while (high - low > 1);
  return high;
}

// Updates the row whose occurrences begin at `begin`, with all threads of the
// block. Many elements at a time are loaded into shared memory, where one
// thread for each column adds them up in their order, while the loads of the
// next ones are under way.
template <int kWidth, typename T>
__device__ __forceinline__ void UpdateLongRow(
    const RowsArguments<T>& a, const AdamAsyncUpdate<SlotType<T>>& update,
    int64_t begin) {
  using Slot = SlotType<T>;
  const int64_t row_size = a.rows.row_size;
  const int64_t row = static_cast<int64_t>(a.keys[begin]) * row_size;
  const int64_t end = EndOfRow(a.keys, begin, a.rows.num_indices);
  // Of each thread, under way at the same time: 16 elements.
  constexpr int kLoads = kWidth == 1 ? 8 : kWidth == 8 ? 2 : 4;
  __shared__ Vector<Slot, kWidth> tile[kLoads * kBlockThreads];
  const Slot* const elements = reinterpret_cast<const Slot*>(tile);
  int columns = kWidth;  // of the tile
  while (columns < 64 && columns < row_size) {
    columns *= 2;
  }
  const int vectors = columns / kWidth;
  const int tile_rows = kLoads * kBlockThreads / vectors;
  const int thread = static_cast<int>(threadIdx.x);
  const int vector = thread % vectors;
  const int first = thread / vectors;
  const int step = kBlockThreads / vectors;
  for (int64_t left = 0; left < row_size; left += columns) {
    const int64_t loaded_column = left + vector * kWidth;
    Vector<Slot, kWidth> loaded[kLoads] = {};
    const auto load_tile = [&](int64_t from) {
      TF_SYNCREP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const int64_t place = from + first + i * step;
        if (loaded_column < row_size && place < end) {
          loaded[i] = LoadWidened<kWidth>(
              a.grad + a.positions[place] * row_size + loaded_column);
        }
      }
    };
    const bool sums = thread < columns && left + thread < row_size;
    Slot sum = 0;
    load_tile(begin);
    for (int64_t from = begin; from < end; from += tile_rows) {
      __syncthreads();  // the tile before has been added up
      TF_SYNCREP_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        tile[(first + i * step) * vectors + vector] = loaded[i];
      }
      __syncthreads();
      load_tile(from + tile_rows);
      if (sums) {
        const int64_t rest = end - from;
        const int count = rest < tile_rows ? static_cast<int>(rest) : tile_rows;
        int i = 0;
        if (from == begin) {
          sum = elements[thread];
          i = 1;
        }
        TF_SYNCREP_UNROLL_BY_4
        for (; i < count; ++i) {
          sum += elements[i * columns + thread];
        }
      }
    }
    if (sums) {
      const int64_t i = row + left + thread;
      const Vector<Slot, 1> g = {sum};
      UpdateVector(update, g, a.adam.var + i, a.adam.m + i, a.adam.v + i);
    }
  }
}

// How many blocks of RowsKernel a multiprocessor holds. Rows that occur once
// wait for memory, so it is better that long rows spill a few registers than
// that fewer blocks are under way. Turing's hold 1,024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
inline constexpr int kResidentRowsBlocks = 4;
#else
inline constexpr int kResidentRowsBlocks = 5;
#endif

// Does nothing but name the bad index, if there is one.
template <int kWidth, typename T>
__global__ __launch_bounds__(
    kBlockThreads, kResidentRowsBlocks) void RowsKernel(RowsArguments<T> a) {
  if (a.bad_index != nullptr && a.bad_index->position >= 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      a.bad_index->index = IndexAt(a.rows, a.bad_index->position);
    }
    return;
  }
  const AdamAsyncUpdate<SlotType<T>> update =
      TakeStep(a.adam, a.arrival_counter);
  __shared__ int num_long_rows;
  __shared__ int64_t long_rows[kMaxLongRowsPerChunk];
  const int64_t num_keys = a.rows.num_indices;
  const int groups = kBlockThreads / a.plan.lanes;
  const int group = static_cast<int>(threadIdx.x) / a.plan.lanes;
  const int lane = static_cast<int>(threadIdx.x) % a.plan.lanes;
  const int64_t chunk = int64_t{groups} * a.plan.places_per_group;
  for (int64_t chunk_begin = blockIdx.x * chunk; chunk_begin < num_keys;
       chunk_begin += gridDim.x * chunk) {
    if (threadIdx.x == 0) {
      num_long_rows = 0;
    }
    __syncthreads();
    for (int i = 0; i < a.plan.places_per_group; ++i) {
      const int64_t begin = chunk_begin + i * groups + group;
      if (begin >= num_keys) {
        break;
      }
      const uint64_t key = a.keys[begin];
      if (key >= static_cast<uint64_t>(a.rows.num_rows) ||
          (begin > 0 && a.keys[begin - 1] == key)) {
        continue;
      }
      if (begin + kLongRow <= num_keys && a.keys[begin + kLongRow - 1] == key) {
        if (lane == 0) {
          long_rows[atomicAdd(&num_long_rows, 1)] = begin;
        }
        continue;
      }
      int count = 1;
      while (begin + count < num_keys && a.keys[begin + count] == key) {
        ++count;
      }
      UpdateShortRow<kWidth>(a, update, begin, count, lane);
    }
    __syncthreads();
    for (int i = 0; i < num_long_rows; ++i) {
      UpdateLongRow<kWidth>(a, update, long_rows[i]);
    }
    __syncthreads();  // before num_long_rows is 0 again
  }
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ADAM_ASYNC_KERNELS_H_
