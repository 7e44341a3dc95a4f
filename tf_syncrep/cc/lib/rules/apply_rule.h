// Applies a gradient to a variable and its slots, by any rule.
//
// T is the type of variable and gradient: Half, BFloat16, float or double;
// slots, numbers and all arithmetic are in SlotType<T>. A dense gradient
// updates all of a variable; a sparse one updates the rows that it touches and
// no others, each of them once, by the sum of its occurrences. The number of
// threads and the instruction set change no bit of the results. Nothing here
// can fail.

#ifndef TF_SYNCREP_CC_LIB_RULES_APPLY_RULE_H_
#define TF_SYNCREP_CC_LIB_RULES_APPLY_RULE_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/lib/rules/rule_loops.h"
#include "tf_syncrep/cc/lib/rules/stochastic_rounding.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// A rule's numbers, and its loops for the type and the instruction set.
template <typename T>
struct AnyRule {
  const void* rule;
  const RuleLoops<T>* loops;
  // Half and BFloat16 variables are rounded by these, or to nearest if there
  // are none. Other types are never rounded.
  const RoundingDraws* draws;
};

// `rule` and `draws` must outlive the result.
template <typename T, typename Rule>
AnyRule<T> RuleOf(const Rule& rule, CpuLevel level = BestCpuLevel(),
                  const RoundingDraws* draws = nullptr) {
  return {&rule, &RuleLoopsFor<Rule, T>(level), draws};
}

// Pointers to a variable and its slots, which do not overlap. Slots that the
// rule does not have are null.
template <typename T>
struct RuleArrays {
  T* var = nullptr;
  SlotType<T>* slots[kMaxSlots] = {};
};

// In a dense update by a rule that is not rowwise, so many elements get the
// random numbers of a row, whatever the shape of the variable.
inline constexpr int64_t kDrawBlock = 4096;

// Updates `num_rows` rows of `row_size` elements, which is all of a variable.
// The caller holds the arrays exclusively.
template <typename T>
void ApplyRule(const AnyRule<T>& rule, int64_t num_rows, int64_t row_size,
               const T* grad, const RuleArrays<T>& arrays, Sharder& sharder);

// Updates each of `rows`, which are rows of the tables, with the sum of those
// rows of `grad` that are at its positions, in their order. A row has
// `row_size` elements.
//
// Calls on the same tables may run at the same time, since each of them holds
// the row's stripe of RowLocks::Global() while it updates the row.
template <typename T>
void SparseApplyRule(const AnyRule<T>& rule, const RowGroups& rows,
                     int64_t row_size, const T* grad,
                     const RuleArrays<T>& arrays, Sharder& sharder,
                     CpuLevel cpu_level = BestCpuLevel());

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_APPLY_RULE_H_
