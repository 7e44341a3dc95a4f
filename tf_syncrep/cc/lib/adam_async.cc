#include "tf_syncrep/cc/lib/adam_async.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {
namespace {

// A hand-over to another thread pays from about this many elements on (tens of
// microseconds of work).
constexpr int64_t kMinElementsPerShard = 16384;

// How many rows ahead of the one being updated memory is asked for. Rows of a
// large table are far apart, so each is a cache and often a TLB miss.
constexpr int64_t kPrefetchDistance = 4;

// The loops: each is instantiated once per instruction set, by RowKernels.

// `Grad` is T, or SlotType<T> where occurrences have been summed.
template <AdamAsyncFormula kFormula, typename T, typename Grad>
TF_SYNCREP_ALWAYS_INLINE void UpdateLoop(
    const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
    const Grad* __restrict__ grad, T* __restrict__ var,
    SlotType<T>* __restrict__ m, SlotType<T>* __restrict__ v) {
  // A copy: through the reference the compiler would have to assume that a
  // store to m or v changes it.
  const AdamAsyncUpdate<SlotType<T>> constants = update;
  for (int64_t i = 0; i < size; ++i) {
    UpdateElement<kFormula, T>(constants, Widen(grad[i]), var + i, m + i,
                               v + i);
  }
}

template <typename T, typename Grad>
TF_SYNCREP_ALWAYS_INLINE void Update(const AdamAsyncUpdate<SlotType<T>>& update,
                                     int64_t size, const Grad* grad, T* var,
                                     SlotType<T>* m, SlotType<T>* v) {
  switch (update.formula) {
    case AdamAsyncFormula::kAdam:
      return UpdateLoop<AdamAsyncFormula::kAdam>(update, size, grad, var, m, v);
    case AdamAsyncFormula::kNesterov:
      return UpdateLoop<AdamAsyncFormula::kNesterov>(update, size, grad, var, m,
                                                     v);
    case AdamAsyncFormula::kRmsprop:
      return UpdateLoop<AdamAsyncFormula::kRmsprop>(update, size, grad, var, m,
                                                    v);
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void AddPair(int64_t size, const T* __restrict__ a,
                                      const T* __restrict__ b,
                                      SlotType<T>* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = Widen(a[i]) + Widen(b[i]);
  }
}

template <typename T>
TF_SYNCREP_ALWAYS_INLINE void Accumulate(int64_t size, const T* __restrict__ a,
                                         SlotType<T>* __restrict__ sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] += Widen(a[i]);
  }
}

// The loops of one instruction set.
template <typename T>
struct RowKernels {
  using Slot = SlotType<T>;
  using UpdateParams = AdamAsyncUpdate<Slot>;

  void (*update)(const UpdateParams&, int64_t, const T*, T*, Slot*, Slot*);
  void (*update_with_sum)(const UpdateParams&, int64_t, const Slot*, T*, Slot*,
                          Slot*);
  void (*add_pair)(int64_t, const T*, const T*, Slot*);
  void (*accumulate)(int64_t, const T*, Slot*);
};

#define TF_SYNCREP_DEFINE_ROW_KERNELS(LEVEL, TARGET)                           \
  template <typename T>                                                        \
  struct LEVEL {                                                               \
    using Slot = SlotType<T>;                                                  \
    TARGET static void UpdateRow(const AdamAsyncUpdate<Slot>& update,          \
                                 int64_t size, const T* grad, T* var, Slot* m, \
                                 Slot* v) {                                    \
      Update<T, T>(update, size, grad, var, m, v);                             \
    }                                                                          \
    TARGET static void UpdateRowWithSum(const AdamAsyncUpdate<Slot>& update,   \
                                        int64_t size, const Slot* sum, T* var, \
                                        Slot* m, Slot* v) {                    \
      Update<T, Slot>(update, size, sum, var, m, v);                           \
    }                                                                          \
    TARGET static void AddPairOfRows(int64_t size, const T* a, const T* b,     \
                                     Slot* sum) {                              \
      AddPair<T>(size, a, b, sum);                                             \
    }                                                                          \
    TARGET static void AccumulateRow(int64_t size, const T* a, Slot* sum) {    \
      Accumulate<T>(size, a, sum);                                             \
    }                                                                          \
    static constexpr RowKernels<T> kKernels = {UpdateRow, UpdateRowWithSum,    \
                                               AddPairOfRows, AccumulateRow};  \
  }

TF_SYNCREP_DEFINE_ROW_KERNELS(BaselineKernels, );
TF_SYNCREP_DEFINE_ROW_KERNELS(Avx2Kernels, TF_SYNCREP_TARGET_AVX2);
TF_SYNCREP_DEFINE_ROW_KERNELS(Avx512Kernels, TF_SYNCREP_TARGET_AVX512);

#undef TF_SYNCREP_DEFINE_ROW_KERNELS

template <typename T>
const RowKernels<T>& RowKernelsFor(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx512:
      return Avx512Kernels<T>::kKernels;
    case CpuLevel::kAvx2:
      return Avx2Kernels<T>::kKernels;
    case CpuLevel::kBaseline:
      break;
  }
  return BaselineKernels<T>::kKernels;
}

// One call of SparseApplyAdamAsync; ApplyShard() runs on several threads.
template <typename T>
struct SparseApply {
  using Slot = SlotType<T>;

  const AdamAsyncUpdate<Slot>& update;
  const RowKernels<T>& kernels;
  int64_t num_rows;
  int64_t row_size;
  const int64_t* rows;
  const T* grad;
  T* var;
  Slot* m;
  Slot* v;
  int64_t num_shards;
  int64_t* next;  // see GroupRows(); null if each row is a group of its own

  void ApplyShard(int64_t shard) const {
    const ScopedFlushDenormals flush_denormals;
    if (next == nullptr) {
      const int64_t begin = ShardBegin(shard, num_shards, num_rows);
      const int64_t end = ShardBegin(shard + 1, num_shards, num_rows);
      ApplyGroups(end - begin, [&](int64_t i) {
        return RowGroup{rows[begin + i], begin + i, begin + i};
      });
      return;
    }
    const std::vector<RowGroup> groups =
        GroupRows(rows, num_rows, shard, num_shards, next);
    ApplyGroups(static_cast<int64_t>(groups.size()),
                [&](int64_t i) { return groups[i]; });
  }

  template <typename GroupAt>
  void ApplyGroups(int64_t num_groups, const GroupAt& group_at) const {
    std::vector<Slot> sum;
    for (int64_t i = 0; i < num_groups; ++i) {
      if (i + kPrefetchDistance < num_groups) {
        const int64_t offset =
            std::max<int64_t>(group_at(i + kPrefetchDistance).row, 0) *
            row_size;
        constexpr auto kWriting = PrefetchFor::kWriting;
        Prefetch<kWriting>(var + offset, row_size * sizeof(T));
        Prefetch<kWriting>(m + offset, row_size * sizeof(Slot));
        Prefetch<kWriting>(v + offset, row_size * sizeof(Slot));
      }
      const RowGroup group = group_at(i);
      if (group.row >= 0) {
        ApplyGroup(group, sum);
      }
    }
  }

  void ApplyGroup(const RowGroup& group, std::vector<Slot>& sum) const {
    const bool occurs_once = group.first == group.last;
    if (!occurs_once) {
      SumOccurrences(group, sum);
    }
    const int64_t offset = group.row * row_size;
    std::lock_guard<std::mutex> lock(RowLocks::Global().Of(var, group.row));
    if (occurs_once) {
      kernels.update(update, row_size, grad + group.first * row_size,
                     var + offset, m + offset, v + offset);
    } else {
      kernels.update_with_sum(update, row_size, sum.data(), var + offset,
                              m + offset, v + offset);
    }
  }

  void SumOccurrences(const RowGroup& group, std::vector<Slot>& sum) const {
    sum.resize(row_size);
    int64_t position = next[group.first];
    kernels.add_pair(row_size, grad + group.first * row_size,
                     grad + position * row_size, sum.data());
    while (position != group.last) {
      position = next[position];
      kernels.accumulate(row_size, grad + position * row_size, sum.data());
    }
  }
};

}  // namespace

template <typename T>
void ApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
                    const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                    Sharder& sharder, CpuLevel cpu_level) {
  const RowKernels<T>& kernels = RowKernelsFor<T>(cpu_level);
  const int64_t num_shards = sharder.NumShards(size, kMinElementsPerShard);
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush_denormals;
    const int64_t begin = ShardBegin(shard, num_shards, size);
    const int64_t end = ShardBegin(shard + 1, num_shards, size);
    kernels.update(update, end - begin, grad + begin, var + begin, m + begin,
                   v + begin);
  });
}

template <typename T>
void SparseApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update,
                          int64_t num_rows, int64_t row_size,
                          const int64_t* rows, const T* grad, T* var,
                          SlotType<T>* m, SlotType<T>* v, Sharder& sharder,
                          CpuLevel cpu_level) {
  if (num_rows == 0 || row_size == 0) {
    return;
  }
  const int64_t min_rows_per_shard =
      std::max<int64_t>(kMinElementsPerShard / row_size, 64);
  const int64_t num_shards = sharder.NumShards(num_rows, min_rows_per_shard);
  // Uninitialised on purpose: an entry is written before it is read.
  const std::unique_ptr<int64_t[]> next(AreDistinctAndAscending(rows, num_rows)
                                            ? nullptr
                                            : new int64_t[num_rows]);
  const SparseApply<T> apply = {update,    RowKernelsFor<T>(cpu_level),
                                num_rows,  row_size,
                                rows,      grad,
                                var,       m,
                                v,         num_shards,
                                next.get()};
  sharder.Run(num_shards, [&](int64_t shard) { apply.ApplyShard(shard); });
}

#define TF_SYNCREP_INSTANTIATE(T)                                            \
  template void ApplyAdamAsync<T>(const AdamAsyncUpdate<SlotType<T>>&,       \
                                  int64_t, const T*, T*, SlotType<T>*,       \
                                  SlotType<T>*, Sharder&, CpuLevel);         \
  template void SparseApplyAdamAsync<T>(                                     \
      const AdamAsyncUpdate<SlotType<T>>&, int64_t, int64_t, const int64_t*, \
      const T*, T*, SlotType<T>*, SlotType<T>*, Sharder&, CpuLevel)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
