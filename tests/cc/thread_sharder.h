// A Sharder on threads of its own, for tests without TensorFlow.

#ifndef TESTS_CC_THREAD_SHARDER_H_
#define TESTS_CC_THREAD_SHARDER_H_

#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Starts a thread for each task and joins them all at the end. Thread-safe.
class ThreadSharder final : public Sharder {
 public:
  explicit ThreadSharder(int num_threads) : num_threads_(num_threads) {}

  ~ThreadSharder() override {
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

 private:
  int num_threads() const override { return num_threads_; }

  void Schedule(std::function<void()> task) override {
    std::lock_guard<std::mutex> lock(mu_);
    threads_.emplace_back(std::move(task));
  }

  const int num_threads_;
  std::mutex mu_;  // guards threads_
  std::vector<std::thread> threads_;
};

}  // namespace tf_syncrep

#endif  // TESTS_CC_THREAD_SHARDER_H_
