// The arithmetic of AdamAsync on plain memory.
//
// Adam (Kingma and Ba, 2015, "epsilon hat" form) for asynchronous training, as
// in DeepRec's AdamAsync: each variable has beta powers of its own, and a
// sparse gradient updates the rows that it touches and no others. T is the type
// of variable and gradient: Half, BFloat16, float or double; moments, powers
// and hyper-parameters, and all arithmetic, are in SlotType<T>.

#ifndef TF_SYNCREP_CC_LIB_ADAM_ASYNC_H_
#define TF_SYNCREP_CC_LIB_ADAM_ASYNC_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/adam_async_rule.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/lib/rules/apply_rule.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// The old contents of an array of a variable, where they must not be
// overwritten; null if they are in the array itself.
template <typename T>
struct AdamAsyncBefore {
  const T* var = nullptr;
  const SlotType<T>* m = nullptr;
  const SlotType<T>* v = nullptr;
};

// Updates `size` elements. `var`, `m` and `v` overlap neither each other nor
// what is in `before`; the caller holds them exclusively.
template <typename T>
void ApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
                    const T* grad, const AdamAsyncBefore<T>& before, T* var,
                    SlotType<T>* m, SlotType<T>* v, Sharder& sharder,
                    CpuLevel cpu_level = BestCpuLevel());

// The same with a gradient that is in memory block by block only.
template <typename T>
void ApplyAdamAsyncInBlocks(const AdamAsyncUpdate<SlotType<T>>& update,
                            int64_t size, const GradientBlocks<T>& gradient,
                            const AdamAsyncBefore<T>& before, T* var,
                            SlotType<T>* m, SlotType<T>* v, Sharder& sharder,
                            CpuLevel cpu_level = BestCpuLevel());

// Updates each of `rows`, which are rows of the tables, with the sum of the
// rows of `grad` that are at its positions, in their order; a row has
// `row_size` elements. The result does not depend on the number of threads.
// Cannot fail: memory is what `rows` has.
//
// Calls on the same tables may run at the same time: each holds the row's
// stripe of RowLocks::Global() while it updates the row.
template <typename T>
void SparseApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update,
                          const RowGroups& rows, int64_t row_size,
                          const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                          Sharder& sharder,
                          CpuLevel cpu_level = BestCpuLevel());

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ADAM_ASYNC_H_
