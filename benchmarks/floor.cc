// The floor of the benchmarks: plain two-thread loops over plain memory.
//
// They do the arithmetic and touch the memory that an update needs, and nothing
// else: they have no checks, no locks, no sums of duplicates, and no run-time
// dispatch. benchmarks/harness/native.py compiles this file for the machine it
// runs on and calls it through ctypes.

#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

namespace {

// Runs a function of (begin, end) on the two halves of a range, the second half
// in a thread that stays alive between calls.
class TwoThreads {
 public:
  TwoThreads() : helper_([this] { Help(); }) {}

  ~TwoThreads() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    helper_.join();
  }

  void Run(int64_t size,
           const std::function<void(int64_t, int64_t)>& function) {
    const int64_t middle = size / 2;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      function_ = &function;
      begin_ = middle;
      end_ = size;
    }
    changed_.notify_all();
    function(0, middle);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return function_ == nullptr; });
  }

 private:
  void Help() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || function_ != nullptr; });
      if (stop_) {
        return;
      }
      lock.unlock();
      (*function_)(begin_, end_);
      lock.lock();
      function_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int64_t, int64_t)>* function_ = nullptr;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  bool stop_ = false;
  std::thread helper_;
};

TwoThreads& Threads() {
  static TwoThreads threads;
  return threads;
}

void Adam(float* __restrict var, float* __restrict m, float* __restrict v,
          const float* __restrict grad, int64_t size, float alpha, float beta1,
          float beta2, float epsilon) {
  for (int64_t i = 0; i < size; ++i) {
    const float g = grad[i];
    m[i] = beta1 * m[i] + (1.0f - beta1) * g;
    v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
    var[i] -= alpha * m[i] / (std::sqrt(v[i]) + epsilon);
  }
}

// This does the same for the rules of cc/lib/rules, whose numbers are in the
// same order, with the learning rate first. It gets the slots of one row, or
// its one number.
enum Rule { kAdagrad, kFtrl, kMomentum, kRowwiseAdagrad, kSgd };

void ApplyRule(int rule, float* __restrict var, float* __restrict a,
               float* __restrict z, const float* __restrict grad, int64_t size,
               const float* numbers) {
  const float lr = numbers[0];
  switch (rule) {
    case kAdagrad:
      for (int64_t i = 0; i < size; ++i) {
        a[i] += grad[i] * grad[i];
        var[i] -= lr * grad[i] / std::sqrt(a[i] + numbers[1]);
      }
      return;
    case kFtrl: {
      const float l1 = numbers[2];
      const float regularization = 2 * numbers[3] + numbers[5] / lr;
      for (int64_t i = 0; i < size; ++i) {
        const float sum = a[i] + grad[i] * grad[i];
        const float root = std::sqrt(sum);
        const float sigma = (root - std::sqrt(a[i])) / lr;
        z[i] += grad[i] + (2 * numbers[4] - sigma) * var[i];
        const float clipped = z[i] > l1 ? l1 : z[i] < -l1 ? -l1 : z[i];
        var[i] = (clipped - z[i]) / (root / lr + regularization);
        a[i] = sum;
      }
      return;
    }
    case kMomentum:
      for (int64_t i = 0; i < size; ++i) {
        a[i] = numbers[1] * a[i] - lr * grad[i];
        var[i] += a[i];
      }
      return;
    case kRowwiseAdagrad: {
      constexpr int kLanes = 16;  // one lane would not be vectorised
      float lanes[kLanes] = {};
      for (int64_t i = 0; i + kLanes <= size; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) {
          lanes[lane] += grad[i + lane] * grad[i + lane];
        }
      }
      float squares = 0;
      for (const float lane : lanes) {
        squares += lane;
      }
      *a += squares / static_cast<float>(size);
      const float step = lr / (std::sqrt(*a) + numbers[1]);
      for (int64_t i = 0; i < size; ++i) {
        var[i] -= step * grad[i];
      }
      return;
    }
    case kSgd:
      for (int64_t i = 0; i < size; ++i) {
        var[i] -= lr * grad[i];
      }
      return;
  }
}

}  // namespace

extern "C" {

// Returns memory like that of TensorFlow's CPU allocator, which is aligned, has
// pages of the default size, and was written to once.
float* floor_new(int64_t size) {
  const size_t bytes = (size * sizeof(float) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes);
  if (memory != nullptr) {
    std::memset(memory, 0, bytes);
  }
  return static_cast<float*>(memory);
}

void floor_delete(float* memory) { std::free(memory); }

// Makes one Adam step on the rows `indices[0..count)` of tables with `width`
// columns, one index after the other; `alpha` is the step size with its bias
// corrections.
void floor_sparse_adam(float* var, float* m, float* v, const float* grad,
                       const int64_t* indices, int64_t count, int64_t width,
                       float alpha, float beta1, float beta2, float epsilon) {
  Threads().Run(count, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = indices[i] * width;
      Adam(var + row, m + row, v + row, grad + i * width, width, alpha, beta1,
           beta2, epsilon);
    }
  });
}

// Makes one step of a rule on these rows; slots that it does not have are null.
// For kRowwiseAdagrad the width must be a multiple of 16.
void floor_sparse_rule(int rule, float* var, float* slot0, float* slot1,
                       const float* grad, const int64_t* indices, int64_t count,
                       int64_t width, const float* numbers) {
  const int64_t slot_width = rule == kRowwiseAdagrad ? 1 : width;
  Threads().Run(count, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = indices[i];
      ApplyRule(rule, var + row * width,
                slot0 == nullptr ? nullptr : slot0 + row * slot_width,
                slot1 == nullptr ? nullptr : slot1 + row * slot_width,
                grad + i * width, width, numbers);
    }
  });
}

// Makes one Adam step on `size` floats.
void floor_dense_adam(float* var, float* m, float* v, const float* grad,
                      int64_t size, float alpha, float beta1, float beta2,
                      float epsilon) {
  Threads().Run(size, [=](int64_t begin, int64_t end) {
    Adam(var + begin, m + begin, v + begin, grad + begin, end - begin, alpha,
         beta1, beta2, epsilon);
  });
}

// Copies `size` floats, as STREAM's Copy does.
void floor_copy(float* __restrict to, const float* __restrict from,
                int64_t size) {
  Threads().Run(size, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      to[i] = from[i];
    }
  });
}

// Does what a worker has to do at least in a lookup of `count` ids of each of
// `num_features` features: finds by a hash which ids differ, and copies for
// each id its row, which is row places[i] of `vectors`. `buckets` has
// `num_buckets`, a power of 2 and more than `count`, for each feature.
void floor_lookup(const int32_t* ids, const int32_t* places,
                  const float* vectors, int64_t num_features, int64_t count,
                  int64_t width, int32_t* buckets, int64_t num_buckets,
                  float* out) {
  Threads().Run(num_features, [=](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      int32_t* const seen = buckets + f * num_buckets;
      std::memset(seen, 0xff, num_buckets * sizeof(int32_t));
      for (int64_t i = f * count; i < (f + 1) * count; ++i) {
        const int32_t id = ids[i];
        uint64_t bucket =
            (static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15) >> 40;
        while (seen[bucket & (num_buckets - 1)] != -1 &&
               seen[bucket & (num_buckets - 1)] != id) {
          ++bucket;
        }
        seen[bucket & (num_buckets - 1)] = id;
        std::memcpy(out + i * width, vectors + places[i] * width,
                    width * sizeof(float));
      }
    }
  });
}

}  // extern "C"
