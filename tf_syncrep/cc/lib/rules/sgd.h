// Gradient descent, which may be plain, with momentum, or with Nesterov's
// momentum.

#ifndef TF_SYNCREP_CC_LIB_RULES_SGD_H_
#define TF_SYNCREP_CC_LIB_RULES_SGD_H_

#include <array>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"

namespace tf_syncrep {

template <typename Slot>
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array<const char*, 0> kSlots = {};
  static constexpr std::array kNumbers = {"lr"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var) const {
    var = var - lr * g;
  }

  Slot lr;
};

// The learning rate is within the momentum, as in Keras.
template <typename Slot>
struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array kSlots = {"momentum"};
  static constexpr std::array kNumbers = {"lr", "momentum"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var, Slot& m) const {
    m = momentum * m - lr * g;
    var = var + m;
  }

  Slot lr;
  Slot momentum;
};

// This is by Sutskever et al., 2013.
template <typename Slot>
struct Nesterov {
  static constexpr const char* kName = "nesterov";
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array kSlots = {"momentum"};
  static constexpr std::array kNumbers = {"lr", "momentum"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var, Slot& m) const {
    m = momentum * m - lr * g;
    var = var + (momentum * m - lr * g);
  }

  Slot lr;
  Slot momentum;
};

// The learning rate is outside of the momentum, as tf.compat.v1 has it: the
// slot is a sum of gradients, whatever the rates were.
template <typename Slot>
struct GradientMomentum {
  static constexpr const char* kName = "gradient_momentum";
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array kSlots = {"momentum"};
  static constexpr std::array kNumbers = {"lr", "momentum"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var, Slot& m) const {
    m = momentum * m + g;
    var = var - lr * m;
  }

  Slot lr;
  Slot momentum;
};

template <typename Slot>
struct GradientNesterov {
  static constexpr const char* kName = "gradient_nesterov";
  static constexpr bool kIsRowwise = false;
  static constexpr bool kDividesByLr = false;
  static constexpr std::array kSlots = {"momentum"};
  static constexpr std::array kNumbers = {"lr", "momentum"};

  TF_SYNCREP_ALWAYS_INLINE void Update(Slot g, Slot& var, Slot& m) const {
    m = momentum * m + g;
    var = var - (lr * g + lr * momentum * m);
  }

  Slot lr;
  Slot momentum;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_RULES_SGD_H_
