#include "tf_syncrep/cc/wire/worker_client.h"

#include <utility>

#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tf_syncrep/cc/wire/eager_client.h"
#include "tf_syncrep/cc/wire/methods.h"

namespace tf_syncrep {
namespace wire {
namespace {

using namespace tensorflow;  // NOLINT: two dozen messages of its service

class WireWorker : public WorkerInterface {
 public:
  WireWorker(const Local& local, std::string task, WorkerInterface* grpc)
      : local_(local), task_(std::move(task)), grpc_(grpc) {}

  WorkerInterface* grpc() const { return grpc_; }

  void RunGraphAsync(CallOptions* options, RunGraphRequestWrapper* request,
                     MutableRunGraphResponseWrapper* response,
                     StatusCallback done) override {
    if (const auto connection = local_.hub->Find(task_)) {
      Call(local_, connection, task_, Method::kRunGraph, options,
           request->ToProto(), get_proto_from_wrapper(response),
           std::move(done));
    } else {
      grpc_->RunGraphAsync(options, request, response, std::move(done));
    }
  }
  void CleanupGraphAsync(const CleanupGraphRequest* request,
                         CleanupGraphResponse* response,
                         StatusCallback done) override {
    if (const auto connection = local_.hub->Find(task_)) {
      Call(local_, connection, task_, Method::kCleanupGraph, nullptr, *request,
           response, std::move(done));
    } else {
      grpc_->CleanupGraphAsync(request, response, std::move(done));
    }
  }

  // By gRPC: what is called once, or seldom.
#define TF_SYNCREP_METHOD(method)                                     \
  void method##Async(const method##Request* request,                  \
                     method##Response* response, StatusCallback done) \
      override {                                                      \
    grpc_->method##Async(request, response, std::move(done));         \
  }
  TF_SYNCREP_METHOD(CreateWorkerSession)
  TF_SYNCREP_METHOD(RegisterGraph)
  TF_SYNCREP_METHOD(DeregisterGraph)
  TF_SYNCREP_METHOD(CleanupAll)
  TF_SYNCREP_METHOD(Logging)
  TF_SYNCREP_METHOD(Tracing)
  TF_SYNCREP_METHOD(GetStepSequence)
#undef TF_SYNCREP_METHOD
#define TF_SYNCREP_METHOD(method)                                          \
  void method##Async(CallOptions* options, const method##Request* request, \
                     method##Response* response, StatusCallback done)      \
      override {                                                           \
    grpc_->method##Async(options, request, response, std::move(done));     \
  }
  TF_SYNCREP_METHOD(DeleteWorkerSession)
  TF_SYNCREP_METHOD(RecvBuf)
  TF_SYNCREP_METHOD(CompleteGroup)
  TF_SYNCREP_METHOD(CompleteInstance)
#undef TF_SYNCREP_METHOD
  void GetStatusAsync(CallOptions* options, const GetStatusRequest* request,
                      GetStatusResponse* response, bool fail_fast,
                      StatusCallback done) override {
    grpc_->GetStatusAsync(options, request, response, fail_fast,
                          std::move(done));
  }
  void RecvTensorAsync(CallOptions* options, const RecvTensorRequest* request,
                       TensorResponse* response, StatusCallback done) override {
    grpc_->RecvTensorAsync(options, request, response, std::move(done));
  }

 private:
  const Local local_;
  const std::string task_;
  WorkerInterface* const grpc_;
};

}  // namespace

WorkerInterface* WireWorkerCache::GetOrCreateWorker(const std::string& target) {
  WorkerInterface* const worker = grpc_->GetOrCreateWorker(target);
  if (worker == nullptr || target == own_task_) {
    return worker;
  }
  return new WireWorker(local_, target, worker);
}

void WireWorkerCache::ReleaseWorker(const std::string& target,
                                    WorkerInterface* worker) {
  if (target == own_task_) {
    grpc_->ReleaseWorker(target, worker);
    return;
  }
  auto* const wire = static_cast<WireWorker*>(worker);
  grpc_->ReleaseWorker(target, wire->grpc());
  delete wire;
}

absl::Status WireWorkerCache::GetEagerClientCache(
    std::unique_ptr<eager::EagerClientCache>* clients) {
  if (!makes_eager_clients_()) {
    return grpc_->GetEagerClientCache(clients);
  }
  *clients = std::make_unique<WireEagerClients>(local_);
  return absl::OkStatus();
}

}  // namespace wire
}  // namespace tf_syncrep
