#include "tf_syncrep/cc/tf/device_sharder.h"

#include <utility>

#include "tensorflow/core/lib/core/threadpool.h"

namespace tf_syncrep {

DeviceSharder::DeviceSharder(tensorflow::OpKernelContext* ctx)
    : pool_(ctx->device()->tensorflow_cpu_worker_threads()->workers) {}

int DeviceSharder::num_threads() const { return pool_->NumThreads(); }

void DeviceSharder::Schedule(std::function<void()> task) {
  pool_->Schedule(std::move(task));
}

}  // namespace tf_syncrep
