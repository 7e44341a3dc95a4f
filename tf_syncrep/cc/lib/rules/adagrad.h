// Adagrad makes a step for each element, which is the smaller the larger the
// element's gradients have been.

#ifndef TF_SYNCREP_CC_LIB_RULES_ADAGRAD_H_
#define TF_SYNCREP_CC_LIB_RULES_ADAGRAD_H_

#include <array>
#include <cmath>
#include <limits>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

// This is by Duchi, Hazan and Singer, 2011. Epsilon is under the root, as in
// Keras.
template <typename Slot>
struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array kSlots = {"accumulator"};
  static constexpr std::array kNumbers = {"lr", "epsilon"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var,
                                       Slot& accumulator) const {
    accumulator = accumulator + g * g;
    const Slot divisor = std::sqrt(accumulator + epsilon);
    // It is 0 where all gradients so far were too small to be squared, and both
    // constants are 0. The variable stays then.
    constexpr Slot kInfinity = std::numeric_limits<Slot>::infinity();
    var = var - lr * g / (divisor == Slot(0) ? kInfinity : divisor);
  }

  Slot lr;
  Slot epsilon;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_ADAGRAD_H_
