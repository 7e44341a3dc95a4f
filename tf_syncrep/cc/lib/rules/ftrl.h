// FTRL-Proximal keeps weights at exactly zero until they are useful.

#ifndef TF_SYNCREP_CC_LIB_RULES_FTRL_H_
#define TF_SYNCREP_CC_LIB_RULES_FTRL_H_

#include <array>
#include <cmath>
#include <limits>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

// This is by McMahan et al., "Ad Click Prediction", 2013, in the form that
// Keras has. The power of an accumulator is -lr_power. kOfRoots is for the
// usual power of one half, for which there is an instruction.
template <typename Slot, bool kOfRoots>
struct FtrlOf {
  static constexpr const char* kName = "ftrl";
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = true;
  static constexpr std::array kSlots = {"accumulator", "linear"};
  static constexpr std::array kNumbers = {"lr", "lr_power",     "l1",
                                          "l2", "l2_shrinkage", "beta"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var, Slot& accumulator,
                                       Slot& linear) const {
    const Slot sum = accumulator + g * g;
    const Slot power = Power(sum);
    const Slot sigma = (power - Power(accumulator)) / lr;
    const Slot z = linear + (g + Slot(2) * l2_shrinkage * var - sigma * var);
    const Slot clipped = z > l1 ? l1 : z < -l1 ? -l1 : z;
    const Slot quadratic = power / lr + Slot(2) * (l2 + beta / (Slot(2) * lr));
    // The divisor is 0 where all gradients so far were too small to be squared,
    // and the accumulator began at 0. The variable becomes 0 then.
    constexpr Slot kInfinity = std::numeric_limits<Slot>::infinity();
    var = (clipped - z) / (quadratic == Slot(0) ? kInfinity : quadratic);
    accumulator = sum;
    linear = z;
  }

  Slot lr;
  Slot lr_power;
  Slot l1;
  Slot l2;
  Slot l2_shrinkage;
  Slot beta;

 private:
  TF_SYNCREP_ALWAYS_INLINE Slot Power(Slot sum) const {
    return kOfRoots ? std::sqrt(sum) : std::pow(sum, -lr_power);
  }
};

template <typename Slot>
using Ftrl = FtrlOf<Slot, /*kOfRoots=*/false>;
template <typename Slot>
using FtrlOfRoots = FtrlOf<Slot, /*kOfRoots=*/true>;

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_FTRL_H_
