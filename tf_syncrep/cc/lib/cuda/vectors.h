// What CUDA kernels share: the size of blocks, and memory by vectors.
//
// nvcc compiles this file, and so does g++ behind
// tests/cc/cuda/cuda_emulation.h.

#ifndef TF_SYNCREP_CC_LIB_CUDA_VECTORS_H_
#define TF_SYNCREP_CC_LIB_CUDA_VECTORS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/float16.h"

// Unrolls loops over arrays that are to stay in registers, and whose loads are
// to be issued together. g++ would warn of the pragma.
#if defined(__CUDACC__)
#define TF_SYNCREP_UNROLL _Pragma("unroll")
#define TF_SYNCREP_UNROLL_BY_4 _Pragma("unroll 4")
#else
#define TF_SYNCREP_UNROLL
#define TF_SYNCREP_UNROLL_BY_4
#endif

namespace tf_syncrep {
namespace gpu {

inline constexpr int kBlockThreads = 256;

// How many elements of T are read and written together, which is 16 bytes where
// sizes and addresses allow it.
template <typename T>
inline constexpr int kVectorWidth = 16 / sizeof(T);

// kWidth elements that are loaded and stored together.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Vector {
  T element[kWidth];
};

template <int kWidth, typename T>
__device__ __forceinline__ Vector<T, kWidth> LoadVector(const T* from) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(from);
}

template <int kWidth, typename T>
__device__ __forceinline__ void StoreVector(const Vector<T, kWidth>& vector,
                                            T* to) {
  *reinterpret_cast<Vector<T, kWidth>*>(to) = vector;
}

template <int kWidth, typename T>
__device__ __forceinline__ Vector<SlotType<T>, kWidth> LoadWidened(
    const T* from) {
  const auto narrow = LoadVector<kWidth>(from);
  Vector<SlotType<T>, kWidth> wide;
  TF_SYNCREP_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    wide.element[i] = Widen(narrow.element[i]);
  }
  return wide;
}

}  // namespace gpu
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_VECTORS_H_
