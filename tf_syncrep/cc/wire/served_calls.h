// What other tasks ask of this one.

#ifndef TF_SYNCREP_CC_WIRE_SERVED_CALLS_H_
#define TF_SYNCREP_CC_WIRE_SERVED_CALLS_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "tensorflow/core/common_runtime/eager/context.h"
#include "tensorflow/core/distributed_runtime/eager/eager_service_impl.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tf_syncrep/cc/lib/wire/hub.h"

namespace tf_syncrep {
namespace wire {

// Does it by TensorFlow's own worker and by an eager service, as gRPC's
// services do: calls on the pool of the task, since they may wait, and tensors
// where their sender puts them.
class ServedCalls : public Hub::Server {
 public:
  // Nothing is served before this. Both outlive it.
  void Start(tensorflow::WorkerEnv* env, tensorflow::WorkerInterface* worker);

  // The service of contexts that were made over the wire, once it was started.
  tensorflow::eager::EagerServiceImpl* eager() const { return eager_.get(); }

  // Whether this thread serves a call over the wire.
  static bool IsServing();

  std::unique_ptr<Body> MakeBody(uint8_t method, uint64_t size) override;
  void OnRequest(const Hub::ConnectionPtr& connection, uint64_t id,
                 uint8_t method, std::string_view meta,
                 std::unique_ptr<Body> body) override;

 private:
  void SendTensor(const Hub::ConnectionPtr& connection, uint64_t id,
                  std::string_view meta);
  // Parses a request, calls `call` with it on the pool, and answers with what
  // that gives to its callback.
  template <typename Request, typename Response, typename CallIt>
  void Serve(const Hub::ConnectionPtr& connection, uint64_t id,
             std::unique_ptr<Body> body, CallIt call);

  tensorflow::WorkerEnv* env_ = nullptr;
  tensorflow::WorkerInterface* worker_ = nullptr;
  std::unique_ptr<tensorflow::eager::EagerServiceImpl> eager_;
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_SERVED_CALLS_H_
