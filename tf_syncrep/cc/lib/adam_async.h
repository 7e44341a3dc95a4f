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
#include "tf_syncrep/cc/lib/rules/stochastic_rounding.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Updates `size` elements. `var`, `m` and `v` do not overlap; the caller holds
// them exclusively. Half and BFloat16 are rounded by `draws`, or to nearest if
// it is null.
template <typename T>
void ApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
                    const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                    Sharder& sharder, CpuLevel cpu_level = BestCpuLevel(),
                    const RoundingDraws* draws = nullptr);

// Updates each row of the tables that `rows` names with the sum of the rows of
// `grad` at its positions, in their order. A row has `row_size` elements. The
// result does not depend on the number of threads. It cannot fail: `rows` has
// all the memory that is needed.
//
// Calls on the same tables may run at the same time: each holds the stripe of
// the row in RowLocks::Global() while it updates the row.
template <typename T>
void SparseApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update,
                          const RowGroups& rows, int64_t row_size,
                          const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                          Sharder& sharder, CpuLevel cpu_level = BestCpuLevel(),
                          const RoundingDraws* draws = nullptr);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ADAM_ASYNC_H_
