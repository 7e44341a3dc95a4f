// Calls with protocol buffers, at the end that makes them.

#ifndef TF_SYNCREP_CC_WIRE_CALLS_H_
#define TF_SYNCREP_CC_WIRE_CALLS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/platform/protobuf.h"
#include "tensorflow/core/platform/status.h"
#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/hub.h"
#include "tf_syncrep/cc/wire/methods.h"

namespace tf_syncrep {
namespace wire {

// What a task has, for all that is asked of others.
struct Local {
  Hub* hub;
  tensorflow::WorkerEnv* env;
};

// Before each request. Logs it if the environment has TF_SYNCREP_LOG_CALLS, for
// those who count what a step sends.
void NoteRequest(Method method, const std::string& task);

// The meta of an answer that is an error: its message and its payloads.
std::string WriteStatus(const absl::Status& status);

// The status of an answer of `task`. Errors have the words by which
// TensorFlow's coordinator tells a lost server from a lost worker.
absl::Status StatusOf(const Answer& answer, const std::string& task);

// Asks `task`, over `connection`, to run a method. `done` runs once, without a
// lock held; the response is set by then, and must be there until then.
// `options` may be null; if they are cancelled, the call ends, and the other
// task is told.
void Call(const Local& local, const Hub::ConnectionPtr& connection,
          const std::string& task, Method method,
          tensorflow::CallOptions* options,
          const tensorflow::protobuf::MessageLite& request,
          tensorflow::protobuf::MessageLite* response,
          tensorflow::StatusCallback done);

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_CALLS_H_
