// These are the loops of an optimizer's rule, for each type and instruction
// set.
//
// A rule is a struct of numbers that updates one element of a variable and its
// slots, and has a few properties:
//
//     template <typename Slot>
//     struct Adagrad {
//       static constexpr const char* kName = "adagrad";
//       static constexpr bool kIsRowwise = false;
//       static constexpr bool kDividesByLr = false;
//       static constexpr std::array kSlots = {"accumulator"};
//       static constexpr std::array kNumbers = {"lr", "epsilon"};
//       void Update(Slot g, Slot& var, Slot& accumulator) const;
//       Slot lr;
//       Slot epsilon;
//     };
//
// `kSlots` names slots of the variable's shape, at most kMaxSlots, and
// `kNumbers` the rule's numbers in the order of its fields, of which the first
// is the learning rate; error messages speak of both. A rule with `kIsRowwise`
// has one slot with a number for each row, and two functions in the place of
// one:
//
//     // From the squares of a row's gradient, their sum: updates the row's
//     // slot and returns a number for Update().
//     Slot UpdateRowSlot(Slot sum_of_squares, int64_t row_size,
//                        Slot& slot) const;
//     void Update(Slot g, Slot of_row, Slot& var) const;

#ifndef TF_SYNCREP_CC_LIB_RULES_RULE_LOOPS_H_
#define TF_SYNCREP_CC_LIB_RULES_RULE_LOOPS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rules/stochastic_rounding.h"

namespace tf_syncrep {

inline constexpr int kMaxSlots = 2;

// A sum of squares is the sum of so many parts, each of which has every
// kSquareLanes-th element, so that the result is the same with vector registers
// of any length.
inline constexpr int kSquareLanes = 16;

// The loops of one rule for one instruction set. Each is over part of a row or
// of a dense variable. `rule` is the rule's struct. Slots that it does not have
// are null. Arrays of one call do not overlap.
template <typename T>
struct RuleLoops {
  using Slot = SlotType<T>;

  int num_slots = 0;
  bool is_rowwise = false;

  // Updates `size` elements by their gradient; `of_row` is what update_row_slot
  // has returned. With `draws` var is rounded stochastically; other types than
  // Half and BFloat16 ignore them.
  void (*update)(const void* rule, int64_t size, Slot of_row, const T* grad,
                 T* var, Slot* slot0, Slot* slot1,
                 const RowDraws* draws) = nullptr;
  // Does the same with a gradient that is the sum of several.
  void (*update_by_sum)(const void* rule, int64_t size, Slot of_row,
                        const Slot* sum, T* var, Slot* slot0, Slot* slot1,
                        const RowDraws* draws) = nullptr;

  // These belong to rules that are rowwise, and are null for others. The first
  // two add the squares of `size` elements to `lanes`, which has kSquareLanes
  // numbers. The number of elements that were added before must be a multiple
  // of kSquareLanes.
  void (*add_squares)(int64_t size, const T* grad, Slot* lanes) = nullptr;
  void (*add_squares_of_sum)(int64_t size, const Slot* sum,
                             Slot* lanes) = nullptr;
  Slot (*update_row_slot)(const void* rule, const Slot* lanes, int64_t row_size,
                          Slot* slot) = nullptr;
};

// Returns the loops of a rule that rule_loops.cc lists, for T = Half, BFloat16,
// float or double.
template <typename Rule, typename T>
const RuleLoops<T>& RuleLoopsFor(CpuLevel level);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_RULE_LOOPS_H_
