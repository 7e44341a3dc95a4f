// Runs everything on the calling thread, so that a run can be repeated.

#ifndef TESTS_CC_INLINE_SHARDER_H_
#define TESTS_CC_INLINE_SHARDER_H_

#include <functional>

#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// Work is split as for `num_threads` threads.
class InlineSharder final : public Sharder {
 public:
  explicit InlineSharder(int num_threads = 1) : num_threads_(num_threads) {}

 private:
  int num_threads() const override { return num_threads_; }
  void Schedule(std::function<void()> task) override { task(); }

  const int num_threads_;
};

}  // namespace tf_syncrep

#endif  // TESTS_CC_INLINE_SHARDER_H_
