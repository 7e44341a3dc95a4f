// The sum of dense gradients in memory of the GPU.
//
// Sums and the division are computed by the same passes, in the same order, as
// on the host.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_H_
#define TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_H_

#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Puts a pass into the stream, in one launch. The arrays are in memory of the
// GPU that the stream belongs to, which must be current.
template <typename T>
GpuError RunDensePassOnGpu(DensePass pass, const DenseArrays<T>& arrays,
                           GpuStream stream);

// A sum in the GPU's memory. Calls come from any thread, and return when the
// work is in the stream. Gradients, sums and results must be used in that same
// stream, and their memory is freed in it too.
template <typename T>
class GpuDenseGradientSum final : public DenseGradientSum<T> {
 public:
  // One gradient is kept: pushes wait for the launch of a pass, not for its
  // end, so more would gain nothing.
  explicit GpuDenseGradientSum(const GpuQueue& queue)
      : DenseGradientSum<T>(/*max_kept=*/1), queue_(queue) {}

  GpuError error() const override { return error_; }

 private:
  void Run(DensePass pass, const DenseArrays<T>& arrays,
           Sharder& /*sharder*/) override {
    if (error_ == nullptr) {
      error_ = UseGpu(queue_.device);
    }
    if (error_ == nullptr) {
      error_ = RunDensePassOnGpu(pass, arrays, queue_.stream);
    }
  }

  const GpuQueue queue_;
  GpuError error_ = nullptr;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_H_
