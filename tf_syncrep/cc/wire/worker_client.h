// The workers of other tasks, for sessions of TensorFlow 1.

#ifndef TF_SYNCREP_CC_WIRE_WORKER_CLIENT_H_
#define TF_SYNCREP_CC_WIRE_WORKER_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/distributed_runtime/eager/eager_client.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tf_syncrep/cc/wire/calls.h"

namespace tf_syncrep {
namespace wire {

// Makes clients whose calls of each step go over the wire where there is a
// connection. All others, and those to tasks without one, go by gRPC.
class WireWorkerCache : public tensorflow::WorkerCacheWrapper {
 public:
  // `makes_eager_clients`: whether those of the eager service go over the wire;
  // it is asked when they are made.
  WireWorkerCache(tensorflow::WorkerCacheInterface* grpc, const Local& local,
                  std::string own_task,
                  std::function<bool()> makes_eager_clients)
      : WorkerCacheWrapper(grpc),
        grpc_(grpc),
        local_(local),
        own_task_(std::move(own_task)),
        makes_eager_clients_(std::move(makes_eager_clients)) {}

  tensorflow::WorkerInterface* GetOrCreateWorker(
      const std::string& target) override;
  void ReleaseWorker(const std::string& target,
                     tensorflow::WorkerInterface* worker) override;
  absl::Status GetEagerClientCache(
      std::unique_ptr<tensorflow::eager::EagerClientCache>* clients) override;

 private:
  const std::unique_ptr<tensorflow::WorkerCacheInterface> grpc_;
  const Local local_;
  const std::string own_task_;
  const std::function<bool()> makes_eager_clients_;
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_WORKER_CLIENT_H_
