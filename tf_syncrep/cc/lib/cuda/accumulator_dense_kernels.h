// The CUDA kernel of dense sums, without its launches.
//
// nvcc compiles this file, and so does g++ behind
// tests/cc/cuda/cuda_emulation.h. Thread blocks have kBlockThreads threads; the
// grid may have any number.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_KERNELS_H_
#define TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_KERNELS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/vectors.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {
namespace gpu {

// Works on kWidth elements, from element `offset` on.
template <DensePass kPass, int kWidth, typename T>
__device__ __forceinline__ void RunPassOnVector(const DenseArrays<T>& arrays,
                                                int64_t offset) {
  using Sum = SlotType<T>;
  constexpr bool kAddsA =
      kPass != DensePass::kDivide && kPass != DensePass::kDivideTo;
  constexpr bool kWritesOut =
      kPass == DensePass::kDivideTo || kPass == DensePass::kAddDivideTo;
  constexpr bool kDivides = kWritesOut || kPass == DensePass::kDivide ||
                            kPass == DensePass::kAddDivide;
  // All loads are issued before any loaded value is used.
  Vector<Sum, kWidth> sum = {};
  Vector<Sum, kWidth> a = {};
  Vector<Sum, kWidth> b = {};
  if constexpr (kPass != DensePass::kSet) {
    sum = LoadVector<kWidth>(arrays.sum + offset);
  }
  if constexpr (kAddsA) {
    a = LoadWidened<kWidth>(arrays.a + offset);
  }
  if constexpr (kPass == DensePass::kAddTwo) {
    b = LoadWidened<kWidth>(arrays.b + offset);
  }
  Vector<T, kWidth> out;
  TF_SYNCREP_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    Sum value = sum.element[i];
    if constexpr (kPass == DensePass::kSet) {
      value = a.element[i];
    } else if constexpr (kAddsA) {
      value += a.element[i];
    }
    if constexpr (kPass == DensePass::kAddTwo) {
      value += b.element[i];
    }
    if constexpr (kDivides) {
      value /= arrays.divisor;
    }
    if constexpr (kWritesOut) {
      out.element[i] = Narrow<T>(value);
    }
    sum.element[i] = value;
  }
  if constexpr (kWritesOut) {
    StoreVector<kWidth>(out, arrays.out + offset);
  } else {
    StoreVector<kWidth>(sum, arrays.sum + offset);
  }
}

template <DensePass kPass, int kWidth, typename T>
__global__ __launch_bounds__(kBlockThreads) void DensePassKernel(
    DenseArrays<T> arrays) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const int64_t num_vectors = arrays.size / kWidth;
  for (int64_t i = first; i < num_vectors; i += stride) {
    RunPassOnVector<kPass, kWidth>(arrays, i * kWidth);
  }
  // The rest, which is fewer than kWidth elements.
  for (int64_t i = num_vectors * kWidth + first; i < arrays.size; i += stride) {
    RunPassOnVector<kPass, 1>(arrays, i);
  }
}

// Calls `visit` with the pass as a template argument: the type of the argument
// has the pass as `value`.
template <DensePass kPass>
struct DensePassConstant {
  static constexpr DensePass value = kPass;
};

template <typename Visit>
auto VisitDensePass(DensePass pass, const Visit& visit) {
  switch (pass) {
    case DensePass::kSet:
      return visit(DensePassConstant<DensePass::kSet>());
    case DensePass::kAdd:
      return visit(DensePassConstant<DensePass::kAdd>());
    case DensePass::kAddTwo:
      return visit(DensePassConstant<DensePass::kAddTwo>());
    case DensePass::kDivide:
      return visit(DensePassConstant<DensePass::kDivide>());
    case DensePass::kAddDivide:
      return visit(DensePassConstant<DensePass::kAddDivide>());
    case DensePass::kDivideTo:
      return visit(DensePassConstant<DensePass::kDivideTo>());
    case DensePass::kAddMany:  // not asked for: a sum here keeps one gradient
    case DensePass::kAddDivideTo:
      break;
  }
  return visit(DensePassConstant<DensePass::kAddDivideTo>());
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_KERNELS_H_
