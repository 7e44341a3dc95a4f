// The inputs of the AdamAsync ops.

#ifndef TF_SYNCREP_CC_OPS_ADAM_ASYNC_INPUTS_H_
#define TF_SYNCREP_CC_OPS_ADAM_ASYNC_INPUTS_H_

namespace tf_syncrep {

// The order of the inputs in all of the ops; only the sparse ops have kIndices.
enum AdamAsyncInput {
  kVar,
  kM,
  kV,
  kBeta1Power,
  kBeta2Power,
  kLr,
  kBeta1,
  kBeta2,
  kEpsilon,
  kGrad,
  kIndices,
};

// The names of the inputs in error messages.
inline constexpr const char* kAdamAsyncInputNames[] = {
    "var",   "m",     "v",       "beta1_power", "beta2_power", "lr",
    "beta1", "beta2", "epsilon", "grad",        "indices"};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_ADAM_ASYNC_INPUTS_H_
