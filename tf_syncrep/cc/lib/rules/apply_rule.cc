#include "tf_syncrep/cc/lib/rules/apply_rule.h"

#include <algorithm>
#include <optional>

#include "tf_syncrep/cc/lib/gradient_loops.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/prefetch.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"

namespace tf_syncrep {
namespace {

// Handing work to another thread pays from about this many elements on, which
// are tens of microseconds of work.
constexpr int64_t kMinElementsPerShard = 16384;

// So many rows are locked and updated at a time, so that the processor works on
// all of them at once. Each lock and unlock is an atomic instruction, which
// waits for what comes before it.
constexpr int64_t kRowsAtATime = 8;

// The memory of the row that is so many rows ahead is prefetched, and that of
// its gradient. Rows of a large table are far apart, and gradients are read in
// the order of the rows, so that each is a cache miss and often a TLB miss. The
// next rows are on their way while some are updated.
constexpr int64_t kPrefetchDistance = 8;
static_assert(kPrefetchDistance >= kRowsAtATime);
static_assert(kRowsAtATime <= LockedRows::kMaxStripes);

// So many occurrences of a row are added at a time, in parts of a row that stay
// in the first-level cache.
constexpr int64_t kMaxAddedRows = 16;
constexpr int64_t kMaxColumns = 1024;
static_assert(kMaxColumns % kSquareLanes == 0);

// The properties of a rule for which code is compiled separately.
template <int kNumSlotsOf, bool kIsRowwiseOf>
struct RuleShape {
  static constexpr int kNumSlots = kNumSlotsOf;
  static constexpr bool kIsRowwise = kIsRowwiseOf;

  // Returns how many elements of a slot belong to a row.
  static constexpr int64_t SlotSize(int64_t row_size) {
    return kIsRowwise ? 1 : row_size;
  }
};

template <typename T, typename Visit>
void WithShape(const AnyRule<T>& rule, const Visit& visit) {
  if (rule.loops->is_rowwise) {
    return visit(RuleShape<1, true>());
  }
  switch (rule.loops->num_slots) {
    case 0:
      return visit(RuleShape<0, false>());
    case 1:
      return visit(RuleShape<1, false>());
    default:
      return visit(RuleShape<2, false>());
  }
}

template <typename Shape, typename T>
TF_SYNCREP_ALWAYS_INLINE RuleArrays<T> ArraysFrom(const RuleArrays<T>& arrays,
                                                  int64_t row,
                                                  int64_t row_size) {
  RuleArrays<T> from = {arrays.var + row * row_size};
  for (int i = 0; i < Shape::kNumSlots; ++i) {
    from.slots[i] = arrays.slots[i] + row * Shape::SlotSize(row_size);
  }
  return from;
}

// The random numbers of a row's elements from `column` on, if it is rounded by
// such.
template <typename T>
TF_SYNCREP_ALWAYS_INLINE std::optional<RowDraws> DrawsOf(const AnyRule<T>& rule,
                                                         int64_t index,
                                                         int64_t column) {
  if (!kIsRounded<T> || rule.draws == nullptr) {
    return std::nullopt;
  }
  return rule.draws->OfRow(index, column);
}

// Updates a row, or what takes its place in a rule that is not rowwise. `index`
// is its number for random numbers.
template <typename Shape, typename T>
TF_SYNCREP_ALWAYS_INLINE void UpdateRow(const AnyRule<T>& rule, int64_t size,
                                        const T* grad, const RuleArrays<T>& row,
                                        int64_t index) {
  SlotType<T> of_row = 0;
  if constexpr (Shape::kIsRowwise) {
    SlotType<T> lanes[kSquareLanes] = {};
    rule.loops->add_squares(size, grad, lanes);
    of_row = rule.loops->update_row_slot(rule.rule, lanes, size, row.slots[0]);
  }
  const std::optional<RowDraws> draws = DrawsOf(rule, index, 0);
  rule.loops->update(rule.rule, size, of_row, grad, row.var, row.slots[0],
                     row.slots[1], draws ? &*draws : nullptr);
}

// One call of SparseApplyRule. Several threads run ApplyRows().
template <typename Shape, typename T>
struct SparseApply {
  using Slot = SlotType<T>;

  const AnyRule<T>& rule;
  const GradientLoops<T>& loops;
  const RowOccurrence<uint32_t>* sorted;
  int64_t size;  // the size of `sorted`
  int64_t row_size;
  const T* grad;
  const RuleArrays<T>& arrays;

  // Applies the rows whose first occurrence is in [from, to).
  void ApplyRows(int64_t from, int64_t to) const {
    const ScopedFlushDenormals flush_denormals;
    Slot sum[kMaxColumns];
    // The occurrences of rows that have one each and are not updated yet.
    int64_t waiting[kRowsAtATime];
    int64_t num_waiting = 0;
    for (int64_t i = from; i < std::min(from + kPrefetchDistance, to); ++i) {
      PrefetchOccurrence(i);
    }
    ForEachRow(sorted, size, from, to, [&](int64_t begin, int64_t end) {
      if (end - begin == 1) {
        PrefetchOccurrence(begin + kPrefetchDistance);
        waiting[num_waiting++] = begin;
        if (num_waiting == kRowsAtATime) {
          UpdateRows(waiting, num_waiting);
          num_waiting = 0;
        }
        return;
      }
      const auto index = static_cast<int64_t>(sorted[begin].row);
      const RuleArrays<T> row = ArraysFrom<Shape>(arrays, index, row_size);
      Mutex& stripe = RowLocks::Global().Of(arrays.var, index);
      if (row_size <= kMaxColumns) {
        // The sum is computed without the lock.
        SumOccurrences(begin, end, 0, row_size, sum);
        const MutexLock lock(stripe);
        Slot of_row = 0;
        if constexpr (Shape::kIsRowwise) {
          Slot lanes[kSquareLanes] = {};
          rule.loops->add_squares_of_sum(row_size, sum, lanes);
          of_row = UpdateRowSlot(lanes, row);
        }
        UpdateBySum(of_row, index, 0, row_size, sum, row);
        return;
      }
      // All parts of a long row are updated under one lock.
      const MutexLock lock(stripe);
      Slot of_row = 0;
      if constexpr (Shape::kIsRowwise) {
        Slot lanes[kSquareLanes] = {};
        ForEachPart([&](int64_t column, int64_t num) {
          SumOccurrences(begin, end, column, num, sum);
          rule.loops->add_squares_of_sum(num, sum, lanes);
        });
        of_row = UpdateRowSlot(lanes, row);
      }
      ForEachPart([&](int64_t column, int64_t num) {
        SumOccurrences(begin, end, column, num, sum);
        UpdateBySum(of_row, index, column, num, sum, row);
      });
    });
    UpdateRows(waiting, num_waiting);
  }

  // Updates the rows of these occurrences, each of which is its row's only one.
  void UpdateRows(const int64_t* occurrences, int64_t num) const {
    const auto row_of = [&](int64_t i) {
      return static_cast<int64_t>(sorted[occurrences[i]].row);
    };
    for (int64_t i = 0; i < num;) {
      LockedRows locked(arrays.var);
      int64_t end = i;
      while (end < num && locked.Add(row_of(end))) {
        ++end;
      }
      for (; i < end; ++i) {
        UpdateRow<Shape>(rule, row_size, Gradient(occurrences[i]),
                         ArraysFrom<Shape>(arrays, row_of(i), row_size),
                         row_of(i));
      }
    }
  }

  template <typename Visit>
  void ForEachPart(const Visit& visit) const {
    for (int64_t column = 0; column < row_size; column += kMaxColumns) {
      visit(column, std::min(row_size - column, kMaxColumns));
    }
  }

  Slot UpdateRowSlot(const Slot* lanes, const RuleArrays<T>& row) const {
    return rule.loops->update_row_slot(rule.rule, lanes, row_size,
                                       row.slots[0]);
  }

  void UpdateBySum(Slot of_row, int64_t index, int64_t column, int64_t num,
                   const Slot* sum, const RuleArrays<T>& row) const {
    RuleArrays<T> part = {row.var + column};
    for (int i = 0; i < Shape::kNumSlots; ++i) {
      part.slots[i] = row.slots[i] + Shape::SlotSize(column);
    }
    const std::optional<RowDraws> draws = DrawsOf(rule, index, column);
    rule.loops->update_by_sum(rule.rule, num, of_row, sum, part.var,
                              part.slots[0], part.slots[1],
                              draws ? &*draws : nullptr);
  }

  const T* Gradient(int64_t i) const {
    return grad + static_cast<int64_t>(sorted[i].place) * row_size;
  }

  // Prefetches the gradient of occurrence i, if there is one, and its row and
  // the row's stripe, which another core may have had last, if the occurrence
  // is the row's first.
  TF_SYNCREP_ALWAYS_INLINE void PrefetchOccurrence(int64_t i) const {
    constexpr auto kWriting = PrefetchFor::kWriting;
    if (i >= size) {
      return;
    }
    Prefetch<PrefetchFor::kReading>(Gradient(i), row_size * sizeof(T));
    if (i == 0 || sorted[i].row != sorted[i - 1].row) {
      const auto row = static_cast<int64_t>(sorted[i].row);
      Prefetch<kWriting>(&RowLocks::Global().Of(arrays.var, row), 1);
      Prefetch<kWriting>(arrays.var + row * row_size, row_size * sizeof(T));
      const int64_t slot_size = Shape::SlotSize(row_size);
      for (int slot = 0; slot < Shape::kNumSlots; ++slot) {
        Prefetch<kWriting>(arrays.slots[slot] + row * slot_size,
                           slot_size * sizeof(Slot));
      }
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
          PrefetchOccurrence(i + kPrefetchDistance);
        }
        gradients[num_gradients++] = Gradient(i) + column;
      }
      loops.add_rows(num, gradients, num_gradients, is_new, sum);
    }
  }
};

template <typename Shape, typename T>
void ApplyBlocks(const AnyRule<T>& rule, int64_t size, const T* grad,
                 const RuleArrays<T>& arrays, Sharder& sharder) {
  const bool is_rounded = kIsRounded<T> && rule.draws != nullptr;
  sharder.RunParts(
      size, kMinElementsPerShard, /*multiple=*/is_rounded ? kDrawBlock : 1,
      [&](int64_t begin, int64_t end) {
        const ScopedFlushDenormals flush_denormals;
        const int64_t max_block = is_rounded ? kDrawBlock : end - begin;
        for (int64_t i = begin; i < end; i += max_block) {
          UpdateRow<Shape>(rule, std::min(max_block, end - i), grad + i,
                           ArraysFrom<Shape>(arrays, i, /*row_size=*/1),
                           /*index=*/i / kDrawBlock);
        }
      });
}

template <typename Shape, typename T>
void ApplyRows(const AnyRule<T>& rule, int64_t num_rows, int64_t row_size,
               const T* grad, const RuleArrays<T>& arrays, Sharder& sharder) {
  sharder.RunParts(
      num_rows, std::max<int64_t>(kMinElementsPerShard / row_size, 1),
      /*multiple=*/1, [&](int64_t begin, int64_t end) {
        const ScopedFlushDenormals flush_denormals;
        for (int64_t i = begin; i < end; ++i) {
          UpdateRow<Shape>(rule, row_size, grad + i * row_size,
                           ArraysFrom<Shape>(arrays, i, row_size), i);
        }
      });
}

}  // namespace

template <typename T>
void ApplyRule(const AnyRule<T>& rule, int64_t num_rows, int64_t row_size,
               const T* grad, const RuleArrays<T>& arrays, Sharder& sharder) {
  const int64_t size = num_rows * row_size;
  if (size == 0) {
    return;
  }
  WithShape(rule, [&](auto shape) {
    using Shape = decltype(shape);
    if constexpr (Shape::kIsRowwise) {
      ApplyRows<Shape>(rule, num_rows, row_size, grad, arrays, sharder);
    } else {
      ApplyBlocks<Shape>(rule, size, grad, arrays, sharder);
    }
  });
}

template <typename T>
void SparseApplyRule(const AnyRule<T>& rule, const RowGroups& rows,
                     int64_t row_size, const T* grad,
                     const RuleArrays<T>& arrays, Sharder& sharder,
                     CpuLevel cpu_level) {
  if (rows.size() == 0 || row_size == 0) {
    return;
  }
  const int64_t min_rows_per_shard =
      std::max<int64_t>(kMinElementsPerShard / row_size, 64);
  WithShape(rule, [&](auto shape) {
    const SparseApply<decltype(shape), T> apply = {
        rule,          GradientLoopsFor<T>(cpu_level),
        rows.sorted(), rows.size(),
        row_size,      grad,
        arrays};
    sharder.RunParts(
        rows.size(), min_rows_per_shard, /*multiple=*/1,
        [&](int64_t begin, int64_t end) { apply.ApplyRows(begin, end); });
  });
}

#define TF_SYNCREP_INSTANTIATE(T)                                           \
  template void ApplyRule<T>(const AnyRule<T>&, int64_t, int64_t, const T*, \
                             const RuleArrays<T>&, Sharder&);               \
  template void SparseApplyRule<T>(const AnyRule<T>&, const RowGroups&,     \
                                   int64_t, const T*, const RuleArrays<T>&, \
                                   Sharder&, CpuLevel)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
