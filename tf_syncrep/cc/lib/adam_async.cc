#include "tf_syncrep/cc/lib/adam_async.h"

#include <algorithm>
#include <mutex>

#include "tf_syncrep/cc/lib/gradient_loops.h"
#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"

namespace tf_syncrep {
namespace {

// A hand-over to another thread pays from about this many elements on (tens of
// microseconds of work).
constexpr int64_t kMinElementsPerShard = 16384;

// How many rows ahead of the one being updated memory is asked for. Rows of a
// large table are far apart, so each is a cache and often a TLB miss.
constexpr int64_t kPrefetchDistance = 4;

// So many occurrences of a row are added at a time, in parts of a row that stay
// in the first-level cache.
constexpr int64_t kMaxAddedRows = 16;
constexpr int64_t kMaxColumns = 1024;

// How much is copied and then updated at a time, so that it stays in the
// second-level cache meanwhile.
constexpr int64_t kBlock = 4096;

template <typename T>
void CopyBlock(const T* from, int64_t begin, int64_t size, T* to) {
  if (from != nullptr) {
    std::copy(from + begin, from + begin + size, to + begin);
  }
}

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

// The loops of one instruction set.
template <typename T>
struct RowKernels {
  using Slot = SlotType<T>;
  using UpdateParams = AdamAsyncUpdate<Slot>;

  void (*update)(const UpdateParams&, int64_t, const T*, T*, Slot*, Slot*);
  void (*update_with_sum)(const UpdateParams&, int64_t, const Slot*, T*, Slot*,
                          Slot*);
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
    static constexpr RowKernels<T> kKernels = {UpdateRow, UpdateRowWithSum};   \
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

// One call of SparseApplyAdamAsync; ApplyRows() runs on several threads.
template <typename T, typename Row>
struct SparseApply {
  using Slot = SlotType<T>;

  const AdamAsyncUpdate<Slot>& update;
  const RowKernels<T>& kernels;
  const GradientLoops<T>& loops;
  const RowOccurrence<Row>* sorted;
  int64_t size;  // of `sorted`
  int64_t row_size;
  const T* grad;
  T* var;
  Slot* m;
  Slot* v;

  // Applies the rows whose first occurrence is in [from, to).
  void ApplyRows(int64_t from, int64_t to) const {
    const ScopedFlushDenormals flush_denormals;
    Slot sum[kMaxColumns];
    for (int64_t i = from; i < std::min(from + kPrefetchDistance, to); ++i) {
      PrefetchTables(i);
    }
    ForEachRow(sorted, size, from, to, [&](int64_t begin, int64_t end) {
      const auto row = static_cast<int64_t>(sorted[begin].row);
      std::mutex& stripe = RowLocks::Global().Of(var, row);
      if (end - begin == 1) {
        PrefetchTables(begin + kPrefetchDistance);
        const int64_t offset = row * row_size;
        std::lock_guard<std::mutex> lock(stripe);
        kernels.update(update, row_size, Gradient(begin), var + offset,
                       m + offset, v + offset);
        return;
      }
      // Sums need no lock; but the parts of a long row are moved together.
      std::unique_lock<std::mutex> lock(stripe, std::defer_lock);
      if (row_size > kMaxColumns) {
        lock.lock();
      }
      for (int64_t column = 0; column < row_size; column += kMaxColumns) {
        const int64_t num = std::min(row_size - column, kMaxColumns);
        const int64_t offset = row * row_size + column;
        SumOccurrences(begin, end, column, num, sum);
        if (!lock.owns_lock()) {
          lock.lock();
        }
        kernels.update_with_sum(update, num, sum, var + offset, m + offset,
                                v + offset);
      }
    });
  }

  const T* Gradient(int64_t i) const {
    return grad + static_cast<int64_t>(sorted[i].place) * row_size;
  }

  // The row of occurrence i, if there is one and it is the row's first.
  TF_SYNCREP_ALWAYS_INLINE void PrefetchTables(int64_t i) const {
    constexpr auto kWriting = PrefetchFor::kWriting;
    if (i < size && (i == 0 || sorted[i].row != sorted[i - 1].row)) {
      const int64_t offset = static_cast<int64_t>(sorted[i].row) * row_size;
      Prefetch<kWriting>(var + offset, row_size * sizeof(T));
      Prefetch<kWriting>(m + offset, row_size * sizeof(Slot));
      Prefetch<kWriting>(v + offset, row_size * sizeof(Slot));
    }
  }

  void SumOccurrences(int64_t begin, int64_t end, int64_t column, int64_t num,
                      Slot* sum) const {
    const T* gradients[kMaxAddedRows];
    for (int64_t i = begin; i < end;) {
      const bool is_new = i == begin;
      int64_t num_gradients = 0;
      for (; i < end && num_gradients < kMaxAddedRows; ++i) {
        if (column == 0) {
          PrefetchTables(i + kPrefetchDistance);
        }
        gradients[num_gradients++] = Gradient(i) + column;
      }
      loops.add_rows(num, gradients, num_gradients, is_new, sum);
    }
  }
};

// Updates all elements in blocks of at most `max_block`; those of a gradient
// are at `gradient(begin, size, scratch)`.
template <typename T, typename Gradient>
void ApplyBlocks(const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
                 int64_t max_block, const Gradient& gradient,
                 const AdamAsyncBefore<T>& before, T* var, SlotType<T>* m,
                 SlotType<T>* v, Sharder& sharder, CpuLevel cpu_level) {
  const RowKernels<T>& kernels = RowKernelsFor<T>(cpu_level);
  sharder.RunParts(size, kMinElementsPerShard, /*multiple=*/1,
                   [&](int64_t begin, int64_t end) {
                     const ScopedFlushDenormals flush_denormals;
                     T scratch[kAdamAsyncMaxBlock];
                     for (int64_t i = begin; i < end; i += max_block) {
                       const int64_t n = std::min(max_block, end - i);
                       CopyBlock(before.var, i, n, var);
                       CopyBlock(before.m, i, n, m);
                       CopyBlock(before.v, i, n, v);
                       kernels.update(update, n, gradient(i, n, scratch),
                                      var + i, m + i, v + i);
                     }
                   });
}

}  // namespace

template <typename T>
void ApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
                    const T* grad, const AdamAsyncBefore<T>& before, T* var,
                    SlotType<T>* m, SlotType<T>* v, Sharder& sharder,
                    CpuLevel cpu_level) {
  const bool is_in_place =
      before.var == nullptr && before.m == nullptr && before.v == nullptr;
  ApplyBlocks(
      update, size, is_in_place ? size : kBlock,
      [&](int64_t begin, int64_t, T*) { return grad + begin; }, before, var, m,
      v, sharder, cpu_level);
}

template <typename T>
void ApplyAdamAsyncInBlocks(const AdamAsyncUpdate<SlotType<T>>& update,
                            int64_t size, const AdamAsyncGradient<T>& gradient,
                            const AdamAsyncBefore<T>& before, T* var,
                            SlotType<T>* m, SlotType<T>* v, Sharder& sharder,
                            CpuLevel cpu_level) {
  ApplyBlocks(update, size, kAdamAsyncMaxBlock, gradient, before, var, m, v,
              sharder, cpu_level);
}

template <typename T>
void SparseApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update,
                          const RowGroups& rows, int64_t row_size,
                          const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                          Sharder& sharder, CpuLevel cpu_level) {
  if (rows.size() == 0 || row_size == 0) {
    return;
  }
  const int64_t min_rows_per_shard =
      std::max<int64_t>(kMinElementsPerShard / row_size, 64);
  rows.Visit([&](const auto* sorted, int64_t size) {
    const SparseApply<T, decltype(sorted->row)> apply = {
        update,
        RowKernelsFor<T>(cpu_level),
        GradientLoopsFor<T>(cpu_level),
        sorted,
        size,
        row_size,
        grad,
        var,
        m,
        v};
    sharder.RunParts(
        size, min_rows_per_shard, /*multiple=*/1,
        [&](int64_t begin, int64_t end) { apply.ApplyRows(begin, end); });
  });
}

#define TF_SYNCREP_INSTANTIATE(T)                                              \
  template void ApplyAdamAsync<T>(const AdamAsyncUpdate<SlotType<T>>&,         \
                                  int64_t, const T*,                           \
                                  const AdamAsyncBefore<T>&, T*, SlotType<T>*, \
                                  SlotType<T>*, Sharder&, CpuLevel);           \
  template void ApplyAdamAsyncInBlocks<T>(                                     \
      const AdamAsyncUpdate<SlotType<T>>&, int64_t,                            \
      const AdamAsyncGradient<T>&, const AdamAsyncBefore<T>&, T*,              \
      SlotType<T>*, SlotType<T>*, Sharder&, CpuLevel);                         \
  template void SparseApplyAdamAsync<T>(                                       \
      const AdamAsyncUpdate<SlotType<T>>&, const RowGroups&, int64_t,          \
      const T*, T*, SlotType<T>*, SlotType<T>*, Sharder&, CpuLevel)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
