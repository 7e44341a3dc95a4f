// Where the tensors of steps are sent and received.

#ifndef TF_SYNCREP_CC_WIRE_RENDEZVOUS_H_
#define TF_SYNCREP_CC_WIRE_RENDEZVOUS_H_

#include <cstdint>

#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/platform/refcount.h"
#include "tf_syncrep/cc/wire/calls.h"

namespace tf_syncrep {
namespace wire {

// Asks other tasks for tensors over the wire, where both ends are on CPUs and
// there is a connection, and else by gRPC, as its base does. What is sent waits
// in TensorFlow's own rendezvous, from which RecvTensor of either takes it.
class WireRendezvousMgr : public tensorflow::RpcRendezvousMgr {
 public:
  explicit WireRendezvousMgr(const Local& local)
      : RpcRendezvousMgr(local.env), local_(local) {}

 protected:
  tensorflow::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override;

 private:
  const Local local_;
};

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_RENDEZVOUS_H_
