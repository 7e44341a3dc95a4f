// The inputs of the AdamAsync ops.

#ifndef TF_SYNCREP_CC_OPS_ADAM_ASYNC_INPUTS_H_
#define TF_SYNCREP_CC_OPS_ADAM_ASYNC_INPUTS_H_

namespace tf_syncrep {

// In the order of all four ops; only the sparse ones have kIndices.
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

// Their names, by which error messages speak of them.
inline constexpr const char* kAdamAsyncInputNames[] = {
    "var",   "m",     "v",       "beta1_power", "beta2_power", "lr",
    "beta1", "beta2", "epsilon", "grad",        "indices"};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_ADAM_ASYNC_INPUTS_H_
