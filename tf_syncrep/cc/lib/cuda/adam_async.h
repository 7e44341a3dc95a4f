// AdamAsync on memory of the GPU: the launches of its CUDA kernels.
//
// Types are those of cc/lib/rules/apply_rule.h, and the arithmetic is the same
// code. Calls return as soon as the work is in the stream. Calls on the same
// variables are atomic if they are in the same stream: a dense update is one
// kernel, and a sparse one writes in its last kernel only. The device that the
// stream belongs to must be current.

#ifndef TF_SYNCREP_CC_LIB_CUDA_ADAM_ASYNC_H_
#define TF_SYNCREP_CC_LIB_CUDA_ADAM_ASYNC_H_

#include <cstddef>
#include <cstdint>

#include "tf_syncrep/cc/lib/cuda/gpu_device.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rules/adam_async.h"

namespace tf_syncrep {

// All pointers are to memory of the GPU, and the arrays do not overlap.
template <typename T>
struct GpuAdamAsync {
  using Slot = SlotType<T>;

  AdamAsyncFormula formula;
  T* var;
  Slot* m;
  Slot* v;
  // One element each. kRmsprop neither reads nor writes them.
  Slot* beta1_power;
  Slot* beta2_power;
  // One element each.
  const Slot* lr;
  const Slot* beta1;
  const Slot* beta2;
  const Slot* epsilon;
  // Takes the place of beta1 in kRmsprop, unless it is negative.
  float rmsprop_momentum;
};

// Updates `size` elements, and advances the powers, in one launch.
template <typename T>
GpuError ApplyAdamAsyncOnGpu(const GpuAdamAsync<T>& arguments, int64_t size,
                             const T* grad, GpuStream stream);

inline constexpr int64_t kMaxGpuIndices = INT32_MAX;

// A gradient for some rows of a table. Pointers are to memory of the GPU.
struct GpuSparseRows {
  int64_t num_rows;     // of the table
  int64_t row_size;     // elements in a row
  int64_t num_indices;  // at most kMaxGpuIndices
  const void* indices;  // int32_t or int64_t
  bool is_int64;
};

// The first index, by its place in the gradient, that is not a row of the
// table.
struct GpuBadIndex {
  int64_t position;  // -1: all are rows
  int64_t index;     // undefined then
};

// How many bytes SparseApplyAdamAsyncOnGpu() needs to work in.
GpuError SparseAdamAsyncWorkspaceBytes(const GpuSparseRows& rows,
                                       size_t* bytes);

// Updates row indices[i] of the tables with row i of `grad`. Gradients of rows
// that occur several times are summed in order of occurrence and applied once,
// so that the result has the same bits each time. The powers advance once.
//
// `bad_index`, in memory of the GPU, is set. If it names an index, nothing else
// was written. If `bad_index` is null, such indices are ignored instead.
// `workspace` has `workspace_bytes` bytes at a multiple of 256, and is free
// again when the stream has come to the end of the call.
template <typename T>
GpuError SparseApplyAdamAsyncOnGpu(const GpuAdamAsync<T>& arguments,
                                   const GpuSparseRows& rows, const T* grad,
                                   void* workspace, size_t workspace_bytes,
                                   GpuBadIndex* bad_index, GpuStream stream);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_CUDA_ADAM_ASYNC_H_
