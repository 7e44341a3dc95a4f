// What does a task's part of a step.

#ifndef TF_SYNCREP_CC_WIRE_WORKER_H_
#define TF_SYNCREP_CC_WIRE_WORKER_H_

#include <memory>

#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tf_syncrep {
namespace wire {

// Makes a worker like TensorFlow's that does not ask whether it has seen a step
// of a session before.
//
// TensorFlow's remembers the random numbers of the last 100,000 requests, and
// takes one that comes again for one that was sent twice: an AbortedError, for
// which a MonitoredSession begins anew, from its last checkpoint. But each step
// draws its number in a thread of its own, which begins with 32 random bits, so
// that of some 40,000 steps one has a number of others. Neither gRPC nor a wire
// gives a request twice.
std::unique_ptr<tensorflow::GrpcWorker> MakeWorker(
    tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config);

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_WORKER_H_
