#include "tf_syncrep/cc/lib/rules/rule_loops.h"

#include "tf_syncrep/cc/lib/rules/adagrad.h"
#include "tf_syncrep/cc/lib/rules/adam_async.h"
#include "tf_syncrep/cc/lib/rules/ftrl.h"
#include "tf_syncrep/cc/lib/rules/rowwise_adagrad.h"
#include "tf_syncrep/cc/lib/rules/sgd.h"

namespace tf_syncrep {
namespace {

// Each loop is instantiated once per instruction set, below. `Grad` is T, or
// SlotType<T> if occurrences have been summed.

template <typename T>
struct NearestStore {
  TF_SYNCREP_ALWAYS_INLINE T operator()(SlotType<T> value, int64_t) const {
    return Narrow<T>(value);
  }
};

template <typename T>
struct StochasticStore {
  TF_SYNCREP_ALWAYS_INLINE T operator()(SlotType<T> value, int64_t i) const {
    return RoundStochastically<T>(value, draws.Of(static_cast<uint32_t>(i)));
  }

  RowDraws draws;
};

template <typename Rule, typename T, typename Grad, typename Store>
TF_SYNCREP_ALWAYS_INLINE void UpdateLoop(const void* rule, int64_t size,
                                         SlotType<T> of_row,
                                         const Grad* __restrict__ grad,
                                         T* __restrict__ var,
                                         SlotType<T>* __restrict__ slot0,
                                         SlotType<T>* __restrict__ slot1,
                                         const Store store) {
  static_assert(Rule::kSlots.size() <= kMaxSlots);
  // The rule is copied, since through the pointer the compiler would have to
  // assume that a store to a slot changes it.
  const Rule numbers = *static_cast<const Rule*>(rule);
  for (int64_t i = 0; i < size; ++i) {
    const SlotType<T> g = Widen(grad[i]);
    SlotType<T> value = Widen(var[i]);
    if constexpr (Rule::kIsRowwise) {
      numbers.Update(g, of_row, value);
    } else if constexpr (Rule::kSlots.size() == 0) {
      numbers.Update(g, value);
    } else if constexpr (Rule::kSlots.size() == 1) {
      numbers.Update(g, value, slot0[i]);
    } else {
      numbers.Update(g, value, slot0[i], slot1[i]);
    }
    var[i] = store(value, i);
  }
}

template <typename Rule, typename T, typename Grad>
TF_SYNCREP_ALWAYS_INLINE void UpdateAndRound(
    const void* rule, int64_t size, SlotType<T> of_row, const Grad* grad,
    T* var, SlotType<T>* slot0, SlotType<T>* slot1, const RowDraws* draws) {
  if constexpr (kIsRounded<T>) {
    if (draws != nullptr) {
      UpdateLoop<Rule, T, Grad>(rule, size, of_row, grad, var, slot0, slot1,
                                StochasticStore<T>{*draws});
      return;
    }
  }
  UpdateLoop<Rule, T, Grad>(rule, size, of_row, grad, var, slot0, slot1,
                            NearestStore<T>());
}

template <typename Slot, typename Grad>
TF_SYNCREP_ALWAYS_INLINE void SquaresLoop(int64_t size,
                                          const Grad* __restrict__ grad,
                                          Slot* __restrict__ lanes) {
  int64_t i = 0;
  for (; i + kSquareLanes <= size; i += kSquareLanes) {
    for (int lane = 0; lane < kSquareLanes; ++lane) {
      const Slot g = Widen(grad[i + lane]);
      lanes[lane] += g * g;
    }
  }
  for (int lane = 0; i < size; ++i, ++lane) {
    const Slot g = Widen(grad[i]);
    lanes[lane] += g * g;
  }
}

template <typename Rule, typename Slot>
Slot UpdateRowSlot(const void* rule, const Slot* lanes, int64_t row_size,
                   Slot* slot) {
  Slot sums[kSquareLanes];
  for (int lane = 0; lane < kSquareLanes; ++lane) {
    sums[lane] = lanes[lane];
  }
  for (int width = kSquareLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      sums[lane] += sums[lane + width];
    }
  }
  return static_cast<const Rule*>(rule)->UpdateRowSlot(sums[0], row_size,
                                                       *slot);
}

#define TF_SYNCREP_DEFINE_RULE_LOOPS(LEVEL, TARGET)                            \
  template <typename Rule, typename T>                                         \
  struct LEVEL {                                                               \
    using Slot = SlotType<T>;                                                  \
    TARGET static void Update(const void* rule, int64_t size, Slot of_row,     \
                              const T* grad, T* var, Slot* slot0, Slot* slot1, \
                              const RowDraws* draws) {                         \
      UpdateAndRound<Rule, T, T>(rule, size, of_row, grad, var, slot0, slot1,  \
                                 draws);                                       \
    }                                                                          \
    TARGET static void UpdateBySum(const void* rule, int64_t size,             \
                                   Slot of_row, const Slot* sum, T* var,       \
                                   Slot* slot0, Slot* slot1,                   \
                                   const RowDraws* draws) {                    \
      UpdateAndRound<Rule, T, Slot>(rule, size, of_row, sum, var, slot0,       \
                                    slot1, draws);                             \
    }                                                                          \
    TARGET static void AddSquares(int64_t size, const T* grad, Slot* lanes) {  \
      SquaresLoop<Slot, T>(size, grad, lanes);                                 \
    }                                                                          \
    TARGET static void AddSquaresOfSum(int64_t size, const Slot* sum,          \
                                       Slot* lanes) {                          \
      SquaresLoop<Slot, Slot>(size, sum, lanes);                               \
    }                                                                          \
    static constexpr RuleLoops<T> Loops() {                                    \
      RuleLoops<T> loops = {Rule::kSlots.size(), Rule::kIsRowwise, Update,     \
                            UpdateBySum};                                      \
      if constexpr (Rule::kIsRowwise) {                                        \
        loops.add_squares = AddSquares;                                        \
        loops.add_squares_of_sum = AddSquaresOfSum;                            \
        loops.update_row_slot = UpdateRowSlot<Rule, Slot>;                     \
      }                                                                        \
      return loops;                                                            \
    }                                                                          \
    static constexpr RuleLoops<T> kLoops = Loops();                            \
  }

TF_SYNCREP_DEFINE_RULE_LOOPS(BaselineLoops, );
TF_SYNCREP_DEFINE_RULE_LOOPS(Avx2Loops, TF_SYNCREP_TARGET_AVX2);
TF_SYNCREP_DEFINE_RULE_LOOPS(Avx512Loops, TF_SYNCREP_TARGET_AVX512);

#undef TF_SYNCREP_DEFINE_RULE_LOOPS

}  // namespace

template <typename Rule, typename T>
const RuleLoops<T>& RuleLoopsFor(CpuLevel level) {
  return OfLevel(level, &BaselineLoops<Rule, T>::kLoops,
                 &Avx2Loops<Rule, T>::kLoops, &Avx512Loops<Rule, T>::kLoops);
}

// A rule's loops are made here, in a file without TensorFlow's headers.
#define TF_SYNCREP_RULE(RULE)                                                  \
  template const RuleLoops<Half>& RuleLoopsFor<RULE<float>, Half>(CpuLevel);   \
  template const RuleLoops<BFloat16>& RuleLoopsFor<RULE<float>, BFloat16>(     \
      CpuLevel);                                                               \
  template const RuleLoops<float>& RuleLoopsFor<RULE<float>, float>(CpuLevel); \
  template const RuleLoops<double>& RuleLoopsFor<RULE<double>, double>(CpuLevel)

TF_SYNCREP_RULE(AdamAsync);
TF_SYNCREP_RULE(AdamAsyncNesterov);
TF_SYNCREP_RULE(AdamAsyncRmsprop);
TF_SYNCREP_RULE(Adagrad);
TF_SYNCREP_RULE(RowwiseAdagrad);
TF_SYNCREP_RULE(Ftrl);
TF_SYNCREP_RULE(FtrlOfRoots);
TF_SYNCREP_RULE(Sgd);
TF_SYNCREP_RULE(GradientMomentum);
TF_SYNCREP_RULE(GradientNesterov);
TF_SYNCREP_RULE(Momentum);
TF_SYNCREP_RULE(Nesterov);

#undef TF_SYNCREP_RULE

}  // namespace tf_syncrep
