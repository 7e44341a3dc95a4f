// Row-wise Adagrad makes a step for each row, which has one number of state.

#ifndef TF_SYNCREP_CC_LIB_RULES_ROWWISE_ADAGRAD_H_
#define TF_SYNCREP_CC_LIB_RULES_ROWWISE_ADAGRAD_H_

#include <array>
#include <cmath>
#include <cstdint>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

// This is EXACT_ROWWISE_ADAGRAD of FBGEMM: Adagrad with the mean of the squares
// of a row in the place of each square, and with epsilon beside the root.
template <typename Slot>
struct RowwiseAdagrad {
  static constexpr const char* kName = "rowwise_adagrad";
  static constexpr bool kIsRowwise = true;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array kSlots = {"accumulator"};
  static constexpr std::array kNumbers = {"lr", "epsilon"};

  Slot UpdateRowSlot(Slot sum_of_squares, int64_t row_size,
                     Slot& accumulator) const {
    accumulator = accumulator + sum_of_squares / static_cast<Slot>(row_size);
    const Slot divisor = std::sqrt(accumulator) + epsilon;
    // It is 0 where all gradients so far were too small to be squared, and both
    // constants are 0. The row stays then.
    return divisor == Slot(0) ? Slot(0) : lr / divisor;
  }

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot step_size,
                                       Slot& var) const {
    var = var - step_size * g;
  }

  Slot lr;
  Slot epsilon;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_ROWWISE_ADAGRAD_H_
