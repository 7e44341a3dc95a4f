// The sum of dense gradients in memory of the GPU.
//
// All of it, and the division, is the arithmetic of the host's sum: the same
// passes in the same order.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_H_
#define TF_SYNCREP_CC_LIB_CUDA_ACCUMULATOR_DENSE_H_

#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/lib/cuda/gpu_stream.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Puts a pass into the stream, in one launch. The arrays are in memory of the
// GPU that the stream belongs to, which must be current.
template <typename T>
GpuError RunDensePassOnGpu(DensePass pass, const DenseArrays<T>& arrays,
                           GpuStream stream);

// In the GPU's memory. Calls return when the work is in the stream, from any
// thread; whoever uses gradients, sums and results does so in the same stream,
// in which memory is free again, too.
template <typename T>
class GpuDenseGradientSum final : public DenseGradientSum<T> {
 public:
  // Pushes wait for the launch of a pass, and not for the pass.
  explicit GpuDenseGradientSum(const GpuQueue& queue)
      : DenseGradientSum<T>(/*max_kept=*/1), queue_(queue) {}

  void Merge(GradientSum& other, Sharder& sharder) override {
    DenseGradientSum<T>::Merge(other, sharder);
    if (error_ == nullptr) {
      error_ = other.error();
    }
  }

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
