// The Sharder of a kernel: its device's intra-op thread pool.

#ifndef TF_SYNCREP_CC_TF_DEVICE_SHARDER_H_
#define TF_SYNCREP_CC_TF_DEVICE_SHARDER_H_

#include <functional>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// It is valid as long as the context from which it was made.
class DeviceSharder final : public Sharder {
 public:
  explicit DeviceSharder(tensorflow::OpKernelContext* ctx)
      : pool_(ctx->device()->tensorflow_cpu_worker_threads()->workers) {}

 private:
  int num_threads() const override { return pool_->NumThreads(); }
  void Schedule(std::function<void()> task) override {
    pool_->Schedule(std::move(task));
  }

  tensorflow::thread::ThreadPool* const pool_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_DEVICE_SHARDER_H_
