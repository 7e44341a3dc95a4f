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

// Returns memory for so many elements, or no owner when there is none.
using AllocateBuffer = std::function<OwnedBuffer(int64_t num_elements)>;

// A pass over the arrays of a sum.
enum class DensePass {
  kSet,          // sum = a
  kAdd,          // sum = sum + a
  kAddTwo,       // sum = (sum + a) + b
  kAddMany,      // sum = ((sum + gradients[0]) + gradients[1]) + ...
  kAddSum,       // sum = sum + other
  kDivide,       // sum = sum / divisor
  kAddDivide,    // sum = (sum + a) / divisor
  kDivideTo,     // out = sum / divisor
  kAddDivideTo,  // out = (sum + a) / divisor
};

// What a pass works on: arrays of `size` elements, which do not overlap. Those
// that it does not name are null.
template <typename T>
struct DenseArrays {
  using Sum = SlotType<T>;

  int64_t size;
  const T* a;
  const T* b;
  const Sum* other;
  Sum* sum;
  T* out;
  Sum divisor;
  // Of kAddMany, which takes kMaxAdded at most.
  const T* const* gradients;
  int64_t num_gradients;
};

// What one pass adds at most.
inline constexpr int kMaxAdded = 8;

// Adds gradients of type T up, element by element, in SlotType<T>; its
// subclasses decide where and by what.
//
// Between two calls it holds at most two arrays of the gradient's size: the sum
// and, when it could be kept without a copy, the gradient that came last.
// Adding gradients in pairs reads and writes the sum half as often, and that is
// where the time goes. While others wait to be added, up to seven are left for
// one of them to add along with its own. (With TensorFlow's accumulator there
// are as many arrays: the sum, and the one before it, until the next gradient
// has come.)
template <typename T>
class DenseGradientSum : public GradientSum {
 public:
  using Sum = SlotType<T>;

  // Adds `size` elements, as many as in all calls. A gradient with an owner is
  // nobody else's: the sum keeps it, and may write to it. One without is only
  // read during the call. `allocate_sum`, for elements of type Sum, is used at
  // most once. `others_wait` says that another call follows at once. Returns
  // false, and has changed nothing, when there was no memory.
  bool Add(const OwnedBuffer& gradient, int64_t size,
           const AllocateBuffer& allocate_sum, bool others_wait,
           Sharder& sharder);

  void Merge(GradientSum& other, Sharder& sharder) override;

  int64_t held_bytes() const override {
    return size_ *
           static_cast<int64_t>((sum_.owner == nullptr ? 0 : sizeof(Sum)) +
                                num_kept_ * sizeof(T));
  }

  // The sum divided by `divisor`, as elements of type T: the sum's own memory
  // where T is its type, otherwise what `allocate_result` gives. Ends the life
  // of the sum. There is no owner when there was no memory.
  OwnedBuffer Finish(int64_t divisor, const AllocateBuffer& allocate_result,
                     Sharder& sharder);

  // The memory of the sum, for another one. Ends the life of the sum.
  OwnedBuffer Release();

 protected:
  // Gradients that are kept for one pass, at most kMaxAdded - 1.
  explicit DenseGradientSum(int max_kept) : max_kept_(max_kept) {}

  const Sum* sum() const { return static_cast<const Sum*>(sum_.data); }
  int num_kept() const { return num_kept_; }
  const T* kept(int i) const { return static_cast<const T*>(kept_[i].data); }

 private:
  virtual void Run(DensePass pass, const DenseArrays<T>& arrays,
                   Sharder& sharder) = 0;

  // Adds the first `num` of those that are kept, in one pass with `last`, if
  // that is not null.
  void AddKept(int num, const T* last, Sharder& sharder);

  const int max_kept_;
  int64_t size_ = 0;
  OwnedBuffer sum_;  // of type Sum
  // Of type T, in order of arrival: gradients that are not in sum_ yet.
  std::array<OwnedBuffer, kMaxAdded - 1> kept_;
  int num_kept_ = 0;
};

// In the host's memory, on the threads of the sharder.
template <typename T>
class CpuDenseGradientSum final : public DenseGradientSum<T> {
 public:
  explicit CpuDenseGradientSum(CpuLevel cpu_level = BestCpuLevel())
      : DenseGradientSum<T>(kMaxAdded - 1), cpu_level_(cpu_level) {}

  static constexpr int64_t kMaxBlock = 256;

  // The `size` elements from `begin` on, no more than kMaxBlock, of what
  // Finish() would give, bit for bit: in `scratch`, or in the sum's own memory.
  // Several threads may call it. For callers that need each element only once:
  // the whole result would be written and read again.
  const T* Block(int64_t divisor, int64_t begin, int64_t size,
                 T* scratch) const;

 private:
  void Run(DensePass pass, const DenseArrays<T>& arrays,
           Sharder& sharder) override;

  const CpuLevel cpu_level_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_DENSE_H_
