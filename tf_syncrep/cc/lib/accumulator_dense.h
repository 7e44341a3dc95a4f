// The sum of dense gradients.

#ifndef TF_SYNCREP_CC_LIB_ACCUMULATOR_DENSE_H_
#define TF_SYNCREP_CC_LIB_ACCUMULATOR_DENSE_H_

#include <array>
#include <cstdint>
#include <functional>

#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Returns memory for `num_elements` elements, or no owner when there is none.
using AllocateBuffer = std::function<OwnedBuffer(int64_t num_elements)>;

// A pass over the arrays of a sum.
enum class DensePass {
  kSet,          // sum = a
  kAdd,          // sum = sum + a
  kAddTwo,       // sum = (sum + a) + b
  kAddMany,      // sum = ((sum + gradients[0]) + gradients[1]) + ...
  kDivide,       // sum = sum / divisor
  kAddDivide,    // sum = (sum + a) / divisor
  kDivideTo,     // out = sum / divisor
  kAddDivideTo,  // out = (sum + a) / divisor
};

// The arrays that a pass works on, of `size` elements each. They do not
// overlap, and those that the pass does not use are null.
template <typename T>
struct DenseArrays {
  using Sum = SlotType<T>;

  int64_t size;
  const T* a;
  const T* b;
  Sum* sum;
  T* out;
  Sum divisor;
  // For kAddMany, which takes at most kMaxAdded gradients.
  const T* const* gradients;
  int64_t num_gradients;
};

// How many gradients one pass adds at most.
inline constexpr int kMaxAdded = 8;

// Adds up gradients of type T, element by element, in SlotType<T>. The
// subclasses decide where the memory is and what runs the passes.
//
// Between two calls a sum usually holds at most two arrays of the gradient's
// size: the sum and, if it could be kept without a copy, the last gradient.
// (TensorFlow's accumulator has as many: the sum, and the sum before it until
// the next gradient comes.) Adding gradients in pairs reads and writes the sum
// half as often, which is what takes the time. While other pushes wait, the sum
// keeps up to seven gradients, and a later push adds them in one pass with its
// own.
template <typename T>
class DenseGradientSum : public GradientSum {
 public:
  using Sum = SlotType<T>;

  // Adds a gradient of `size` elements, which is the same in all calls. A
  // gradient with an owner belongs to nobody else: the sum keeps it, and may
  // write to it. A gradient without an owner is only read during the call.
  // `allocate_sum`, for elements of type Sum, is called at most once.
  // `others_wait` says that another call follows at once. Returns false, and
  // has changed nothing, when there is no memory.
  bool Add(const OwnedBuffer& gradient, int64_t size,
           const AllocateBuffer& allocate_sum, bool others_wait,
           Sharder& sharder);

  int64_t held_bytes() const override {
    return size_ *
           static_cast<int64_t>((sum_.owner == nullptr ? 0 : sizeof(Sum)) +
                                num_kept_ * sizeof(T));
  }

  // Returns the sum divided by `divisor`, as elements of type T: in the sum's
  // own memory if T is its type, otherwise in memory from `allocate_result`.
  // The sum must not be used afterwards. The result has no owner when there is
  // no memory.
  OwnedBuffer Finish(int64_t divisor, const AllocateBuffer& allocate_result,
                     Sharder& sharder);

 protected:
  // `max_kept` gradients, at most kMaxAdded - 1, are kept for one pass.
  explicit DenseGradientSum(int max_kept) : max_kept_(max_kept) {}

 private:
  virtual void Run(DensePass pass, const DenseArrays<T>& arrays,
                   Sharder& sharder) = 0;

  // Adds the first `num` kept gradients in one pass, together with `last` if it
  // is not null.
  void AddKept(int num, const T* last, Sharder& sharder);

  const int max_kept_;
  int64_t size_ = 0;
  OwnedBuffer sum_;  // of type Sum
  // Gradients of type T that are not in sum_ yet, in order of arrival.
  std::array<OwnedBuffer, kMaxAdded - 1> kept_;
  int num_kept_ = 0;
};

// A sum in the host's memory, computed on the threads of the sharder.
template <typename T>
class CpuDenseGradientSum final : public DenseGradientSum<T> {
 public:
  explicit CpuDenseGradientSum(CpuLevel cpu_level = BestCpuLevel())
      : DenseGradientSum<T>(kMaxAdded - 1), cpu_level_(cpu_level) {}

 private:
  void Run(DensePass pass, const DenseArrays<T>& arrays,
           Sharder& sharder) override;

  const CpuLevel cpu_level_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_DENSE_H_
