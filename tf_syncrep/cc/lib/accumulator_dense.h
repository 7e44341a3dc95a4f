// The sum of dense gradients.

#ifndef TF_SYNCREP_CC_LIB_ACCUMULATOR_DENSE_H_
#define TF_SYNCREP_CC_LIB_ACCUMULATOR_DENSE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Memory, and what keeps it alive. Without an owner there is none.
struct OwnedBuffer {
  void* data = nullptr;
  std::shared_ptr<void> owner;
};

// Returns memory for so many elements, or no owner when there is none.
using AllocateBuffer = std::function<OwnedBuffer(int64_t num_elements)>;

// Adds gradients of type T up, element by element, in SlotType<T>.
//
// Between two calls it holds at most two arrays of the gradient's size: the sum
// and, when it could be kept without a copy, the gradient that came last.
// Adding gradients in pairs reads and writes the sum half as often, and this is
// what the time goes into. (With TensorFlow's accumulator there are as many
// arrays: the sum, and the one before it, until the next gradient has come.)
template <typename T>
class DenseGradientSum final : public GradientSum {
 public:
  using Sum = SlotType<T>;

  explicit DenseGradientSum(CpuLevel cpu_level = BestCpuLevel())
      : cpu_level_(cpu_level) {}

  // Adds `size` elements, as many as in all calls. A gradient with an owner is
  // nobody else's: the sum keeps it, and may write to it. One without is only
  // read during the call. `allocate_sum`, for elements of type Sum, is used at
  // most once. Returns false, and has changed nothing, when it gave no memory.
  bool Add(const OwnedBuffer& gradient, int64_t size,
           const AllocateBuffer& allocate_sum, Sharder& sharder);

  void Merge(GradientSum& other, Sharder& sharder) override;

  // The sum divided by `divisor`, as elements of type T: the sum's own memory
  // where T is its type, otherwise what `allocate_result` gives. Ends the life
  // of the sum. There is no owner when there was no memory.
  OwnedBuffer Finish(int64_t divisor, const AllocateBuffer& allocate_result,
                     Sharder& sharder);

 private:
  CpuLevel cpu_level_;
  int64_t size_ = 0;
  OwnedBuffer sum_;   // of type Sum
  OwnedBuffer last_;  // of type T: a gradient that is not in sum_ yet, if any
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_DENSE_H_
