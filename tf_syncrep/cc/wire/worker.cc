#include "tf_syncrep/cc/wire/worker.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tf_syncrep {
namespace wire {
namespace {

using tensorflow::CallOptions;
using tensorflow::GrpcWorker;
using tensorflow::MutableRunGraphResponseWrapper;
using tensorflow::RunGraphRequestWrapper;
using tensorflow::StatusCallback;

// A request without its number, which is remembered for no other.
class Unnumbered : public RunGraphRequestWrapper {
 public:
  explicit Unnumbered(const RunGraphRequestWrapper* request)
      : request_(*request) {}

  int64_t request_id() const override { return 0; }

  const std::string& session_handle() const override {
    return request_.session_handle();
  }
  bool create_worker_session_called() const override {
    return request_.create_worker_session_called();
  }
  const std::string& graph_handle() const override {
    return request_.graph_handle();
  }
  int64_t step_id() const override { return request_.step_id(); }
  const tensorflow::ExecutorOpts& exec_opts() const override {
    return request_.exec_opts();
  }
  size_t num_sends() const override { return request_.num_sends(); }
  const std::string& send_key(size_t i) const override {
    return request_.send_key(i);
  }
  absl::Status SendValue(size_t i, tensorflow::Tensor* value) const override {
    return request_.SendValue(i, value);
  }
  size_t num_recvs() const override { return request_.num_recvs(); }
  const std::string& recv_key(size_t i) const override {
    return request_.recv_key(i);
  }
  bool is_partial() const override { return request_.is_partial(); }
  bool is_last_partial_run() const override {
    return request_.is_last_partial_run();
  }
  bool store_errors_in_response_body() const override {
    return request_.store_errors_in_response_body();
  }
  const tensorflow::RunGraphRequest& ToProto() const override {
    return request_.ToProto();
  }

 private:
  const RunGraphRequestWrapper& request_;
};

class Worker final : public GrpcWorker {
 public:
  using GrpcWorker::GrpcWorker;

  void RunGraphAsync(CallOptions* options, RunGraphRequestWrapper* request,
                     MutableRunGraphResponseWrapper* response,
                     StatusCallback done) override {
    const auto unnumbered = std::make_shared<Unnumbered>(request);
    GrpcWorker::RunGraphAsync(
        options, unnumbered.get(), response,
        [unnumbered, done = std::move(done)](const absl::Status& status) {
          done(status);
        });
  }
};

}  // namespace

std::unique_ptr<GrpcWorker> MakeWorker(tensorflow::WorkerEnv* env,
                                       const tensorflow::ConfigProto& config) {
  return std::make_unique<Worker>(env, config);
}

}  // namespace wire
}  // namespace tf_syncrep
