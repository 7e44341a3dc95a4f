// Adam (Kingma and Ba, 2015, "epsilon hat" form) for asynchronous training, as
// in DeepRec's AdamAsync: each variable has beta powers of its own.
//
// CPU and GPU run the same code.

#ifndef TF_SYNCREP_CC_LIB_RULES_ADAM_ASYNC_H_
#define TF_SYNCREP_CC_LIB_RULES_ADAM_ASYNC_H_

#include <array>
#include <cmath>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

enum class AdamAsyncFormula {
  // m = beta1*m + (1-beta1)*g;  v = beta2*v + (1-beta2)*g*g
  // var -= lr * m / (sqrt(v) + epsilon)
  kAdam,
  // The same with beta1*m + (1-beta1)*g in place of the last m.
  kNesterov,
  // v = beta2*v + (1-beta2)*g*g
  // m = beta1*m + lr * g / sqrt(v + epsilon);  var -= m
  kRmsprop,
};

// The names of the rules, by formula.
inline constexpr std::array kAdamAsyncNames = {
    "adam_async", "adam_async_nesterov", "adam_async_rmsprop"};

// Corrects the learning rate's bias by the powers as stored, before they
// advance: lr * sqrt(1 - beta2_power) / (1 - beta1_power).
template <typename Slot>
TF_SYNCREP_ALWAYS_INLINE Slot AdamAsyncStepSize(Slot lr, Slot beta1_power,
                                                Slot beta2_power) {
  return lr * std::sqrt(Slot(1) - beta2_power) / (Slot(1) - beta1_power);
}

template <typename Slot, AdamAsyncFormula kFormula>
struct AdamAsyncRule {
  static constexpr const char* kName =
      kAdamAsyncNames[static_cast<int>(kFormula)];
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array kSlots = {"m", "v"};
  static constexpr std::array kNumbers = {"lr", "beta1", "beta2", "epsilon"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var, Slot& m,
                                       Slot& v) const {
    const Slot one_minus_beta1 = Slot(1) - beta1;
    const Slot one_minus_beta2 = Slot(1) - beta2;
    const Slot new_v = beta2 * v + one_minus_beta2 * g * g;
    Slot new_m;
    Slot delta;
    if constexpr (kFormula == AdamAsyncFormula::kRmsprop) {
      new_m = beta1 * m + lr * g / Divisor(std::sqrt(new_v + epsilon));
      delta = new_m;
    } else {
      new_m = beta1 * m + one_minus_beta1 * g;
      const Slot direction = kFormula == AdamAsyncFormula::kNesterov
                                 ? beta1 * new_m + one_minus_beta1 * g
                                 : new_m;
      delta = lr * direction / Divisor(std::sqrt(new_v) + epsilon);
    }
    m = new_m;
    v = new_v;
    var = var - delta;
  }

  Slot lr;     // not of kRmsprop: bias-corrected
  Slot beta1;  // kRmsprop: the momentum
  Slot beta2;
  Slot epsilon;

 private:
  // It is 0 where all gradients so far were too small to be squared, or are
  // forgotten, and epsilon is 0. The gradient changes nothing then.
  static TF_SYNCREP_ALWAYS_INLINE Slot Divisor(Slot divisor) {
    return divisor == Slot(0) ? static_cast<Slot>(INFINITY) : divisor;
  }
};

template <typename Slot>
using AdamAsync = AdamAsyncRule<Slot, AdamAsyncFormula::kAdam>;
template <typename Slot>
using AdamAsyncNesterov = AdamAsyncRule<Slot, AdamAsyncFormula::kNesterov>;
template <typename Slot>
using AdamAsyncRmsprop = AdamAsyncRule<Slot, AdamAsyncFormula::kRmsprop>;

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_ADAM_ASYNC_H_
