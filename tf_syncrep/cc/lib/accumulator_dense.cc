#include "tf_syncrep/cc/lib/accumulator_dense.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "tf_syncrep/cc/lib/gradient_loops.h"

namespace tf_syncrep {
namespace {

// As in adam_async.cc: below this a hand-over to another thread does not pay.
constexpr int64_t kMinElementsPerShard = 16384;

// Parts begin at a cache line, whatever the type.
constexpr int64_t kPartMultiple = 64;

template <typename T>
T* DataOf(const OwnedBuffer& buffer) {
  return static_cast<T*>(buffer.data);
}

}  // namespace

template <typename T>
bool DenseGradientSum<T>::Add(const OwnedBuffer& gradient, int64_t size,
                              const AllocateBuffer& allocate_sum,
                              Sharder& sharder) {
  DenseArrays<T> arrays = {};
  arrays.size = size;
  arrays.a = DataOf<T>(gradient);
  const bool is_ours = gradient.owner != nullptr;
  if (sum_.owner == nullptr) {
    if (is_ours && std::is_same<T, Sum>::value) {
      sum_ = gradient;
    } else {
      OwnedBuffer fresh = allocate_sum(size);
      if (fresh.owner == nullptr) {
        return false;
      }
      sum_ = std::move(fresh);
      arrays.sum = DataOf<Sum>(sum_);
      Run(DensePass::kSet, arrays, sharder);
    }
    size_ = size;
    return true;
  }
  arrays.sum = DataOf<Sum>(sum_);
  if (last_.owner != nullptr) {
    arrays.b = arrays.a;
    arrays.a = DataOf<T>(last_);
    Run(DensePass::kAddTwo, arrays, sharder);
    last_ = {};
  } else if (is_ours) {
    last_ = gradient;
  } else {
    Run(DensePass::kAdd, arrays, sharder);
  }
  return true;
}

template <typename T>
void DenseGradientSum<T>::Merge(GradientSum& other, Sharder& sharder) {
  auto& newer = static_cast<DenseGradientSum&>(other);
  DenseArrays<T> arrays = {};
  arrays.size = size_;
  arrays.sum = DataOf<Sum>(sum_);
  const auto add_last = [&](OwnedBuffer& last_of_one) {
    if (last_of_one.owner != nullptr) {
      arrays.a = DataOf<T>(last_of_one);
      Run(DensePass::kAdd, arrays, sharder);
      last_of_one = {};
    }
  };
  add_last(last_);
  arrays.other = DataOf<Sum>(newer.sum_);
  Run(DensePass::kAddSum, arrays, sharder);
  newer.sum_ = {};
  add_last(newer.last_);
}

template <typename T>
OwnedBuffer DenseGradientSum<T>::Finish(int64_t divisor,
                                        const AllocateBuffer& allocate_result,
                                        Sharder& sharder) {
  DenseArrays<T> arrays = {};
  arrays.size = size_;
  arrays.a = DataOf<T>(last_);
  arrays.sum = DataOf<Sum>(sum_);
  arrays.divisor = static_cast<Sum>(divisor);
  const bool has_last = last_.owner != nullptr;
  OwnedBuffer result;
  if constexpr (std::is_same<T, Sum>::value) {
    if (has_last) {
      Run(DensePass::kAddDivide, arrays, sharder);
    } else if (divisor != 1) {
      Run(DensePass::kDivide, arrays, sharder);
    }
    result = std::move(sum_);
  } else {
    result = allocate_result(size_);
    if (result.owner != nullptr) {
      arrays.out = DataOf<T>(result);
      Run(has_last ? DensePass::kAddDivideTo : DensePass::kDivideTo, arrays,
          sharder);
    }
  }
  sum_ = {};
  last_ = {};
  return result;
}

template <typename T>
void CpuDenseGradientSum<T>::Run(DensePass pass, const DenseArrays<T>& arrays,
                                 Sharder& sharder) {
  using Sum = SlotType<T>;
  const GradientLoops<T>& loops = GradientLoopsFor<T>(cpu_level_);
  const GradientLoops<Sum>& sum_loops = GradientLoopsFor<Sum>(cpu_level_);
  const DenseArrays<T>& all = arrays;
  const auto run_part = [&](int64_t begin, int64_t end) {
    const ScopedFlushDenormals flush_denormals;
    const int64_t n = end - begin;
    switch (pass) {
      case DensePass::kSet:
        loops.set(n, all.a + begin, all.sum + begin);
        break;
      case DensePass::kAdd:
        loops.add(n, all.a + begin, all.sum + begin);
        break;
      case DensePass::kAddTwo:
        loops.add_two(n, all.a + begin, all.b + begin, all.sum + begin);
        break;
      case DensePass::kAddSum:
        sum_loops.add(n, all.other + begin, all.sum + begin);
        break;
      case DensePass::kDivide:
        loops.divide(n, all.divisor, all.sum + begin);
        break;
      case DensePass::kAddDivide:
        loops.add_divide(n, all.a + begin, all.divisor, all.sum + begin);
        break;
      case DensePass::kDivideTo:
        loops.divide_to(n, all.sum + begin, all.divisor, all.out + begin);
        break;
      case DensePass::kAddDivideTo:
        loops.add_divide_to(n, all.sum + begin, all.a + begin, all.divisor,
                            all.out + begin);
        break;
    }
  };
  sharder.RunParts(arrays.size, kMinElementsPerShard, kPartMultiple, run_part);
}

#define TF_SYNCREP_INSTANTIATE(T)     \
  template class DenseGradientSum<T>; \
  template class CpuDenseGradientSum<T>

TF_SYNCREP_INSTANTIATE_ALL_TYPES(TF_SYNCREP_INSTANTIATE);

#undef TF_SYNCREP_INSTANTIATE

}  // namespace tf_syncrep
