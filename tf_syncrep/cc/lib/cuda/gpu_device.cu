#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/lib/cuda/launch.h"

namespace tf_syncrep {

GpuError CurrentGpu(int* device) { return gpu::ErrorOf(cudaGetDevice(device)); }

GpuError UseGpu(int device) {
  int current = -1;
  TF_SYNCREP_RETURN_IF_CUDA_ERROR(cudaGetDevice(&current));
  if (current == device) {
    return nullptr;
  }
  return gpu::ErrorOf(cudaSetDevice(device));
}

}  // namespace tf_syncrep
