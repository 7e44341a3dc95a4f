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
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Updates `size` elements. `var`, `m` and `v` do not overlap each other; the
// caller holds them exclusively.
template <typename T>
void ApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
                    const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                    Sharder& sharder, CpuLevel cpu_level = BestCpuLevel());

// Updates row rows[i] of the tables with row i of `grad`, for i in
// [0, num_rows); a row has `row_size` elements. Every rows[i] is inside the
// tables, which the caller has checked, or negative: then row i of `grad` is
// ignored. Rows that occur several times are summed in order of occurrence and
// applied once; the result does not depend on the number of threads.
//
// Calls on the same tables may run at the same time: each holds the row's
// stripe of RowLocks::Global() while it updates the row.
template <typename T>
void SparseApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update,
                          int64_t num_rows, int64_t row_size,
                          const int64_t* rows, const T* grad, T* var,
                          SlotType<T>* m, SlotType<T>* v, Sharder& sharder,
                          CpuLevel cpu_level = BestCpuLevel());

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ADAM_ASYNC_H_
