// Runs CUDA kernels on the CPU: it starts a thread for each thread of a block,
// and runs the blocks of a grid one after the other.
//
// Include it before the kernels. It has only those parts of CUDA that our
// kernels use. Under ThreadSanitizer a missing __syncthreads() is found as a
// data race.

#ifndef TF_SYNCREP_TESTS_CC_CUDA_EMULATION_H_
#define TF_SYNCREP_TESTS_CC_CUDA_EMULATION_H_

#include <pthread.h>

#include <atomic>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one at a time, so they can share the memory of a block.
#define __shared__ static

namespace tf_syncrep {
namespace cuda_emulation {

struct Dim {
  unsigned int x = 0;
};

// The barrier of the block that is running.
class Barrier {
 public:
  explicit Barrier(int num_threads) {
    pthread_barrier_init(&barrier_, nullptr, num_threads);
  }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void Wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};

inline Barrier* block_barrier = nullptr;
inline std::atomic<int> predicate_count{0};

}  // namespace cuda_emulation

inline thread_local cuda_emulation::Dim threadIdx;
inline thread_local cuda_emulation::Dim blockIdx;
inline cuda_emulation::Dim gridDim;

inline void __syncthreads() { cuda_emulation::block_barrier->Wait(); }

inline int __syncthreads_count(bool predicate) {
  using cuda_emulation::predicate_count;
  predicate_count += predicate ? 1 : 0;
  __syncthreads();
  const int count = predicate_count;
  __syncthreads();
  if (threadIdx.x == 0) {
    predicate_count = 0;
  }
  __syncthreads();
  return count;
}

inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

inline int atomicAdd(int* address, int value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

inline unsigned int atomicInc(unsigned int* address, unsigned int limit) {
  unsigned int old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(address, &old, old >= limit ? 0 : old + 1,
                                      /*weak=*/false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}

inline unsigned long long atomicMin(unsigned long long* address,
                                    unsigned long long value) {
  unsigned long long old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (value < old &&
         !__atomic_compare_exchange_n(address, &old, value, /*weak=*/false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

namespace cuda_emulation {

// Does what kernel<<<num_blocks, num_threads>>>(arguments...) does.
template <typename Kernel, typename... Arguments>
void Launch(int num_blocks, int num_threads, Kernel kernel,
            const Arguments&... arguments) {
  Barrier barrier(num_threads);
  block_barrier = &barrier;
  gridDim.x = static_cast<unsigned int>(num_blocks);
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      threadIdx.x = static_cast<unsigned int>(thread);
      for (int block = 0; block < num_blocks; ++block) {
        blockIdx.x = static_cast<unsigned int>(block);
        kernel(arguments...);
        barrier.Wait();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  block_barrier = nullptr;
}

}  // namespace cuda_emulation
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_TESTS_CC_CUDA_EMULATION_H_
