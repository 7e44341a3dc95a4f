// Runs everything on the calling thread.

#ifndef TESTS_SIMULATOR_INLINE_SHARDER_H_
#define TESTS_SIMULATOR_INLINE_SHARDER_H_

#include <functional>

#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep::simulator {

class InlineSharder final : public Sharder {
 private:
  int num_threads() const override { return 1; }
  void Schedule(std::function<void()> task) override { task(); }
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_INLINE_SHARDER_H_
