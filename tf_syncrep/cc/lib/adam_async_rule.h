// The update rule of AdamAsync for one element, the same on CPU and GPU.

#ifndef TF_SYNCREP_CC_LIB_ADAM_ASYNC_RULE_H_
#define TF_SYNCREP_CC_LIB_ADAM_ASYNC_RULE_H_

#include <cmath>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {

enum class AdamAsyncFormula {
  // m = beta1*m + (1-beta1)*g;  v = beta2*v + (1-beta2)*g*g
  // var -= step_size * m / (sqrt(v) + epsilon)
  kAdam,
  // The same with beta1*m + (1-beta1)*g in place of the last m.
  kNesterov,
  // v = beta2*v + (1-beta2)*g*g
  // m = beta1*m + step_size * g / sqrt(v + epsilon);  var -= m
  kRmsprop,
};

// One update rule with its numbers, the same for every element of a call.
template <typename Slot>
struct AdamAsyncUpdate {
  AdamAsyncFormula formula;
  Slot step_size;
  Slot beta1;  // kRmsprop: the momentum
  Slot beta2;
  Slot epsilon;
};

// The bias-corrected step size, lr * sqrt(1 - beta2_power) / (1 - beta1_power),
// from the powers as stored, before they advance.
template <typename Slot>
TF_SYNCREP_ALWAYS_INLINE Slot AdamAsyncStepSize(Slot lr, Slot beta1_power,
                                                Slot beta2_power) {
  return lr * std::sqrt(Slot(1) - beta2_power) / (Slot(1) - beta1_power);
}

// Updates one element; `kFormula` is that of `update`.
template <AdamAsyncFormula kFormula, typename T>
TF_SYNCREP_ALWAYS_INLINE void UpdateElement(
    const AdamAsyncUpdate<SlotType<T>>& update, SlotType<T> g, T* var,
    SlotType<T>* m, SlotType<T>* v) {
  using Slot = SlotType<T>;
  const Slot one_minus_beta1 = Slot(1) - update.beta1;
  const Slot one_minus_beta2 = Slot(1) - update.beta2;
  const Slot new_v = update.beta2 * *v + one_minus_beta2 * g * g;
  Slot new_m;
  Slot delta;
  if constexpr (kFormula == AdamAsyncFormula::kRmsprop) {
    new_m = update.beta1 * *m +
            update.step_size * g / std::sqrt(new_v + update.epsilon);
    delta = new_m;
  } else {
    new_m = update.beta1 * *m + one_minus_beta1 * g;
    const Slot direction = kFormula == AdamAsyncFormula::kNesterov
                               ? update.beta1 * new_m + one_minus_beta1 * g
                               : new_m;
    delta = update.step_size * direction / (std::sqrt(new_v) + update.epsilon);
  }
  *m = new_m;
  *v = new_v;
  *var = Narrow<T>(Widen(*var) - delta);
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ADAM_ASYNC_RULE_H_
