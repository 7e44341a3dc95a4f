#include "tf_syncrep/cc/lib/accumulator_dense.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "tf_syncrep/cc/lib/accumulator_loops.h"

namespace tf_syncrep {
namespace {

// As in adam_async.cc: below this a hand-over to another thread does not pay.
constexpr int64_t kMinElementsPerShard = 16384;

// Calls `loop(begin, size)` for parts of [0, size), each at a multiple of a
// cache line.
void ForParts(int64_t size, Sharder& sharder,
              const std::function<void(int64_t begin, int64_t size)>& loop) {
  constexpr int64_t kAlignment = 64;
  const int64_t num_shards = sharder.NumShards(size, kMinElementsPerShard);
  const int64_t step = size / num_shards / kAlignment * kAlignment;
  sharder.Run(num_shards, [&](int64_t shard) {
    const ScopedFlushDenormals flush_denormals;
    const int64_t begin = step * shard;
    const int64_t end = shard + 1 == num_shards ? size : begin + step;
    loop(begin, end - begin);
  });
}

template <typename T>
T* DataOf(const OwnedBuffer& buffer) {
  return static_cast<T*>(buffer.data);
}

}  // namespace

template <typename T>
bool DenseGradientSum<T>::Add(const OwnedBuffer& gradient, int64_t size,
                              const AllocateBuffer& allocate_sum,
                              Sharder& sharder) {
  const AccumulatorLoops<T>& loops = AccumulatorLoopsFor<T>(cpu_level_);
  const T* const grad = DataOf<T>(gradient);
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
      Sum* const sum = DataOf<Sum>(sum_);
      ForParts(size, sharder, [=, &loops](int64_t begin, int64_t n) {
        loops.set(n, grad + begin, sum + begin);
      });
    }
    size_ = size;
    return true;
  }
  Sum* const sum = DataOf<Sum>(sum_);
  if (last_.owner != nullptr) {
    const T* const last = DataOf<T>(last_);
    ForParts(size, sharder, [=, &loops](int64_t begin, int64_t n) {
      loops.add_two(n, last + begin, grad + begin, sum + begin);
    });
    last_ = {};
  } else if (is_ours) {
    last_ = gradient;
  } else {
    ForParts(size, sharder, [=, &loops](int64_t begin, int64_t n) {
      loops.add(n, grad + begin, sum + begin);
    });
  }
  return true;
}

template <typename T>
void DenseGradientSum<T>::Merge(GradientSum& other, Sharder& sharder) {
  auto& newer = static_cast<DenseGradientSum&>(other);
  const AccumulatorLoops<T>& loops = AccumulatorLoopsFor<T>(cpu_level_);
  const AccumulatorLoops<Sum>& sum_loops = AccumulatorLoopsFor<Sum>(cpu_level_);
  Sum* const sum = DataOf<Sum>(sum_);
  const auto add_last = [&](OwnedBuffer& last_of_one) {
    if (last_of_one.owner == nullptr) {
      return;
    }
    const T* const last = DataOf<T>(last_of_one);
    ForParts(size_, sharder, [=, &loops](int64_t begin, int64_t n) {
      loops.add(n, last + begin, sum + begin);
    });
    last_of_one = {};
  };
  add_last(last_);
  const Sum* const newer_sum = DataOf<Sum>(newer.sum_);
  ForParts(size_, sharder, [=, &sum_loops](int64_t begin, int64_t n) {
    sum_loops.add(n, newer_sum + begin, sum + begin);
  });
  newer.sum_ = {};
  add_last(newer.last_);
}

template <typename T>
OwnedBuffer DenseGradientSum<T>::Finish(int64_t divisor,
                                        const AllocateBuffer& allocate_result,
                                        Sharder& sharder) {
  const AccumulatorLoops<T>& loops = AccumulatorLoopsFor<T>(cpu_level_);
  const Sum d = static_cast<Sum>(divisor);
  Sum* const sum = DataOf<Sum>(sum_);
  const T* const last = DataOf<T>(last_);
  const bool has_last = last_.owner != nullptr;
  OwnedBuffer result;
  if constexpr (std::is_same<T, Sum>::value) {
    if (has_last) {
      ForParts(size_, sharder, [=, &loops](int64_t begin, int64_t n) {
        loops.add_divide(n, last + begin, d, sum + begin);
      });
    } else if (divisor != 1) {
      ForParts(size_, sharder, [=, &loops](int64_t begin, int64_t n) {
        loops.divide(n, d, sum + begin);
      });
    }
    result = std::move(sum_);
  } else {
    result = allocate_result(size_);
    if (result.owner != nullptr) {
      T* const out = DataOf<T>(result);
      ForParts(size_, sharder, [=, &loops](int64_t begin, int64_t n) {
        if (has_last) {
          loops.add_divide_to(n, sum + begin, last + begin, d, out + begin);
        } else {
          loops.divide_to(n, sum + begin, d, out + begin);
        }
      });
    }
  }
  sum_ = {};
  last_ = {};
  return result;
}

template class DenseGradientSum<Half>;
template class DenseGradientSum<BFloat16>;
template class DenseGradientSum<float>;
template class DenseGradientSum<double>;

}  // namespace tf_syncrep
