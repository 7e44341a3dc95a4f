// The update of AdamAsync as a rule: see ../adam_async.h for what it needs.

#ifndef TF_SYNCREP_CC_LIB_RULES_ADAM_ASYNC_H_
#define TF_SYNCREP_CC_LIB_RULES_ADAM_ASYNC_H_

#include <array>

#include "tf_syncrep/cc/lib/adam_async_rule.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

template <typename Slot, AdamAsyncFormula kFormula>
struct AdamAsyncRule {
  static constexpr bool kIsRowwise = false;
  static constexpr std::array kSlots = {"m", "v"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var, Slot& m,
                                       Slot& v) const {
    UpdateElement<kFormula, Slot>(update, g, &var, &m, &v);
  }

  AdamAsyncUpdate<Slot> update;
};

template <typename Slot>
using AdamAsyncAdam = AdamAsyncRule<Slot, AdamAsyncFormula::kAdam>;
template <typename Slot>
using AdamAsyncNesterov = AdamAsyncRule<Slot, AdamAsyncFormula::kNesterov>;
template <typename Slot>
using AdamAsyncRmsprop = AdamAsyncRule<Slot, AdamAsyncFormula::kRmsprop>;

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_ADAM_ASYNC_H_
