#include "tf_syncrep/cc/lib/accumulator_dense.h"

#include <algorithm>
#include <array>
#include <functional>
#include <type_traits>
#include <utility>

#include "tf_syncrep/cc/lib/gradient_loops.h"

namespace tf_syncrep {
namespace {

// A smaller part does not pay for the hand-over to another thread; the value is
// the same as in rules/apply_rule.cc.
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
                              bool others_wait, Sharder& sharder) {
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
      DenseArrays<T> arrays = {};
      arrays.size = size;
      arrays.a = DataOf<T>(gradient);
      arrays.sum = DataOf<Sum>(sum_);
      Run(DensePass::kSet, arrays, sharder);
    }
    size_ = size;
    return true;
  }
  if (is_ours && num_kept_ < (others_wait ? max_kept_ : 1)) {
    kept_[num_kept_++] = gradient;
  } else {
    AddKept(num_kept_, DataOf<T>(gradient), sharder);
  }
  return true;
}

template <typename T>
void DenseGradientSum<T>::AddKept(int num, const T* last, Sharder& sharder) {
  std::array<const T*, kMaxAdded> gradients;
  int num_gradients = 0;
  for (int i = 0; i < num; ++i) {
    gradients[num_gradients++] = DataOf<T>(kept_[i]);
  }
  if (last != nullptr) {
    gradients[num_gradients++] = last;
  }
  DenseArrays<T> arrays = {};
  arrays.size = size_;
  arrays.sum = DataOf<Sum>(sum_);
  if (num_gradients > 2) {
    arrays.gradients = gradients.data();
    arrays.num_gradients = num_gradients;
    Run(DensePass::kAddMany, arrays, sharder);
  } else if (num_gradients > 0) {
    arrays.a = gradients[0];
    arrays.b = num_gradients == 2 ? gradients[1] : nullptr;
    Run(num_gradients == 2 ? DensePass::kAddTwo : DensePass::kAdd, arrays,
        sharder);
  }
  const auto rest =
      std::move(kept_.begin() + num, kept_.begin() + num_kept_, kept_.begin());
  std::fill(rest, kept_.begin() + num_kept_, OwnedBuffer{});
  num_kept_ -= num;
}

template <typename T>
OwnedBuffer DenseGradientSum<T>::Finish(int64_t divisor,
                                        const AllocateBuffer& allocate_result,
                                        Sharder& sharder) {
  // The pass that divides also adds the last kept gradient.
  if (num_kept_ > 1) {
    AddKept(num_kept_ - 1, nullptr, sharder);
  }
  DenseArrays<T> arrays = {};
  arrays.size = size_;
  arrays.a = DataOf<T>(kept_[0]);
  arrays.sum = DataOf<Sum>(sum_);
  arrays.divisor = static_cast<Sum>(divisor);
  const bool has_last = num_kept_ == 1;
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
  kept_ = {};
  num_kept_ = 0;
  return result;
}

template <typename T>
void CpuDenseGradientSum<T>::Run(DensePass pass, const DenseArrays<T>& arrays,
                                 Sharder& sharder) {
  const GradientLoops<T>& loops = GradientLoopsFor<T>(cpu_level_);
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
      case DensePass::kAddMany: {
        std::array<const T*, kMaxAdded> gradients;
        for (int64_t i = 0; i < all.num_gradients; ++i) {
          gradients[i] = all.gradients[i] + begin;
        }
        loops.add_rows(n, gradients.data(), all.num_gradients,
                       /*is_new=*/false, all.sum + begin);
        break;
      }
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
