#include "tf_syncrep/cc/lib/cuda/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_dense_kernels.h"
#include "tf_syncrep/cc/lib/cuda/launch.h"

namespace tf_syncrep {
namespace {

using gpu::kBlockThreads;

template <DensePass kPass, int kWidth, typename T>
GpuError Launch(const DenseArrays<T>& arrays, GpuStream stream) {
  int blocks = 1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(
      gpu::NumBlocksFor(gpu::DensePassKernel<kPass, kWidth, T>, kBlockThreads,
                        arrays.size, kBlockThreads * kWidth, &blocks));
  gpu::DensePassKernel<kPass, kWidth, T>
      <<<blocks, kBlockThreads, 0, stream>>>(arrays);
  return gpu::ErrorOf(cudaGetLastError());
}

}  // namespace

template <typename T>
GpuError RunDensePassOnGpu(DensePass pass, const DenseArrays<T>& arrays,
                           GpuStream stream) {
  if (arrays.size == 0) {
    return nullptr;
  }
  // Arrays that the pass does not use are null, which is aligned.
  const bool is_aligned =
      gpu::AreAligned(arrays.a, arrays.b, arrays.sum, arrays.out);
  return gpu::VisitDensePass(pass, [&](auto constant) {
    constexpr DensePass kPass = decltype(constant)::value;
    return is_aligned ? Launch<kPass, gpu::kVectorWidth<T>>(arrays, stream)
                      : Launch<kPass, 1>(arrays, stream);
  });
}

#define TF_SYNCREP_INSTANTIATE(T)                                          \
  template GpuError RunDensePassOnGpu<T>(DensePass, const DenseArrays<T>&, \
                                         GpuStream)

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
