// The launches of cc/lib/cuda by C names, for ctypes.
//
// A function returns null, or CUDA's words for what went wrong. Dtypes are 0 to
// 3 for half, bfloat16, float and double; formulas are those of
// AdamAsyncFormula.

#include <cstddef>
#include <cstdint>

#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/adam_async.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/lib/float16.h"

#define TF_SYNCREP_EXPORT __attribute__((visibility("default")))

namespace tf_syncrep {
namespace {

// A variable, its slots and hyper-parameters; the same as AdamAsync in
// tests/helpers/gpu_harness.py.
struct Variable {
  int32_t dtype;
  int32_t formula;
  void* var;
  void* m;
  void* v;
  void* beta1_power;
  void* beta2_power;
  void* lr;
  void* beta1;
  void* beta2;
  void* epsilon;
  float rmsprop_momentum;
};

template <typename T>
GpuAdamAsync<T> Arguments(const Variable& variable) {
  using Slot = SlotType<T>;
  return {static_cast<AdamAsyncFormula>(variable.formula),
          static_cast<T*>(variable.var),
          static_cast<Slot*>(variable.m),
          static_cast<Slot*>(variable.v),
          static_cast<Slot*>(variable.beta1_power),
          static_cast<Slot*>(variable.beta2_power),
          static_cast<const Slot*>(variable.lr),
          static_cast<const Slot*>(variable.beta1),
          static_cast<const Slot*>(variable.beta2),
          static_cast<const Slot*>(variable.epsilon),
          variable.rmsprop_momentum};
}

// A pass of a dense sum and its arrays; the same as _DensePass in
// tests/helpers/gpu_harness.py.
struct Pass {
  int32_t dtype;
  int32_t pass;  // of enum DensePass
  int64_t size;
  void* a;
  void* b;
  void* sum;
  void* out;
  double divisor;
};

// Calls `function` with a T of the dtype.
template <typename Function>
GpuError ForDtype(int32_t dtype, Function function) {
  switch (dtype) {
    case 0:
      return function(Half());
    case 1:
      return function(BFloat16());
    case 2:
      return function(float());
    case 3:
      return function(double());
    default:
      return "no such dtype";
  }
}

}  // namespace

extern "C" {

TF_SYNCREP_EXPORT GpuError tf_syncrep_adam_async_dense(const Variable* variable,
                                                       int64_t size,
                                                       const void* grad,
                                                       GpuStream stream) {
  return ForDtype(variable->dtype, [&](auto type) {
    using T = decltype(type);
    return ApplyAdamAsyncOnGpu(Arguments<T>(*variable), size,
                               static_cast<const T*>(grad), stream);
  });
}

TF_SYNCREP_EXPORT GpuError tf_syncrep_adam_async_workspace_bytes(
    const GpuSparseRows* rows, size_t* bytes) {
  return SparseAdamAsyncWorkspaceBytes(*rows, bytes);
}

TF_SYNCREP_EXPORT GpuError tf_syncrep_adam_async_sparse(
    const Variable* variable, const GpuSparseRows* rows, const void* grad,
    void* workspace, size_t workspace_bytes, GpuBadIndex* bad_index,
    GpuStream stream) {
  return ForDtype(variable->dtype, [&](auto type) {
    using T = decltype(type);
    return SparseApplyAdamAsyncOnGpu(Arguments<T>(*variable), *rows,
                                     static_cast<const T*>(grad), workspace,
                                     workspace_bytes, bad_index, stream);
  });
}

TF_SYNCREP_EXPORT GpuError tf_syncrep_accumulator_dense_pass(const Pass* pass,
                                                             GpuStream stream) {
  return ForDtype(pass->dtype, [&](auto type) {
    using T = decltype(type);
    using Sum = SlotType<T>;
    const DenseArrays<T> arrays = {pass->size,
                                   static_cast<const T*>(pass->a),
                                   static_cast<const T*>(pass->b),
                                   static_cast<Sum*>(pass->sum),
                                   static_cast<T*>(pass->out),
                                   static_cast<Sum>(pass->divisor),
                                   /*gradients=*/nullptr,
                                   /*num_gradients=*/0};
    return RunDensePassOnGpu(static_cast<DensePass>(pass->pass), arrays,
                             stream);
  });
}

}  // extern "C"

}  // namespace tf_syncrep
