#include "tf_syncrep/cc/lib/adam_async.h"

#include "tf_syncrep/cc/lib/rules/adam_async.h"
#include "tf_syncrep/cc/lib/rules/apply_rule.h"

namespace tf_syncrep {
namespace {

// Calls `apply` with the rule of the update's formula.
template <typename T, typename Apply>
void WithRule(const AdamAsyncUpdate<SlotType<T>>& update, CpuLevel cpu_level,
              const RoundingDraws* draws, const Apply& apply) {
  using Slot = SlotType<T>;
  switch (update.formula) {
    case AdamAsyncFormula::kAdam:
      return apply(RuleOf<T>(AdamAsyncAdam<Slot>{update}, cpu_level, draws));
    case AdamAsyncFormula::kNesterov:
      return apply(
          RuleOf<T>(AdamAsyncNesterov<Slot>{update}, cpu_level, draws));
    case AdamAsyncFormula::kRmsprop:
      return apply(RuleOf<T>(AdamAsyncRmsprop<Slot>{update}, cpu_level, draws));
  }
}

}  // namespace

template <typename T>
void ApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update, int64_t size,
                    const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                    Sharder& sharder, CpuLevel cpu_level,
                    const RoundingDraws* draws) {
  WithRule<T>(update, cpu_level, draws, [&](const AnyRule<T>& rule) {
    ApplyRule<T>(rule, size, /*row_size=*/1, grad, {var, {m, v}}, sharder);
  });
}

template <typename T>
void SparseApplyAdamAsync(const AdamAsyncUpdate<SlotType<T>>& update,
                          const RowGroups& rows, int64_t row_size,
                          const T* grad, T* var, SlotType<T>* m, SlotType<T>* v,
                          Sharder& sharder, CpuLevel cpu_level,
                          const RoundingDraws* draws) {
  WithRule<T>(update, cpu_level, draws, [&](const AnyRule<T>& rule) {
    SparseApplyRule<T>(rule, rows, row_size, grad, {var, {m, v}}, sharder,
                       cpu_level);
  });
}

#define TF_SYNCREP_INSTANTIATE(T)                                            \
  template void ApplyAdamAsync<T>(                                           \
      const AdamAsyncUpdate<SlotType<T>>&, int64_t, const T*, T*,            \
      SlotType<T>*, SlotType<T>*, Sharder&, CpuLevel, const RoundingDraws*); \
  template void SparseApplyAdamAsync<T>(                                     \
      const AdamAsyncUpdate<SlotType<T>>&, const RowGroups&, int64_t,        \
      const T*, T*, SlotType<T>*, SlotType<T>*, Sharder&, CpuLevel,          \
      const RoundingDraws*)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
