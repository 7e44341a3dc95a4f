#include "tf_syncrep/cc/wire/served_calls.h"

#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/process_util.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tf_syncrep/cc/wire/calls.h"
#include "tf_syncrep/cc/wire/methods.h"
#include "tf_syncrep/cc/wire/tensor_frames.h"

namespace tf_syncrep {
namespace wire {
namespace {

using tensorflow::CallOptions;
using tensorflow::Rendezvous;
using tensorflow::StatusCallback;
using tensorflow::Tensor;

thread_local bool is_serving = false;

void AnswerStatus(const Hub::ConnectionPtr& connection, uint64_t id,
                  const absl::Status& status) {
  connection->Answer(id, static_cast<int>(status.code()), WriteStatus(status),
                     {});
}

// Ends a step whose tensor nobody waits for any more, as TensorFlow's worker
// does: a second later, so that the error that was the reason comes first.
void AbortSoon(tensorflow::WorkerEnv* env, int64_t step) {
  const auto rendezvous = std::make_shared<
      tensorflow::core::RefCountPtr<tensorflow::RemoteRendezvous>>(
      env->rendezvous_mgr->Find(step));
  if ((*rendezvous)->IsRemoteEagerContextDefault()) {
    return;  // It belongs to all eager operations of a context.
  }
  constexpr int64_t kDelayMicros = 1'000'000;
  tensorflow::SchedNonBlockingClosureAfter(kDelayMicros, [rendezvous, step] {
    (*rendezvous)
        ->StartAbort(absl::AbortedError(
            absl::StrCat("Step ", step,
                         " was cancelled by a task that waited for a tensor "
                         "of it")));
  });
}

// A call while it is served.
template <typename Request, typename Response>
struct Served {
  Request request;
  Response response;
  CallOptions options;
};

}  // namespace

bool ServedCalls::IsServing() { return is_serving; }

void ServedCalls::Start(tensorflow::WorkerEnv* env,
                        tensorflow::WorkerInterface* worker) {
  env_ = env;
  worker_ = worker;
  eager_ = std::make_unique<tensorflow::eager::EagerServiceImpl>(env);
}

std::unique_ptr<Body> ServedCalls::MakeBody(uint8_t /*method*/, uint64_t size) {
  try {
    return size > kMostOfACall ? nullptr : std::make_unique<TextBody>(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

template <typename Request, typename Response, typename CallIt>
void ServedCalls::Serve(const Hub::ConnectionPtr& connection, uint64_t id,
                        std::unique_ptr<Body> body, CallIt call) {
  auto served = std::make_shared<Served<Request, Response>>();
  if (body != nullptr &&
      !served->request.ParseFromString(static_cast<TextBody&>(*body).text())) {
    AnswerStatus(
        connection, id,
        absl::InvalidArgumentError("a request of the wire cannot be read"));
    return;
  }
  connection->SetCancel(id, [served] { served->options.StartCancel(); });
  env_->compute_pool->Schedule([connection, id, served,
                                call = std::move(call)] {
    is_serving = true;
    call(&served->options, &served->request, &served->response,
         [connection, id, served](const absl::Status& status) {
           if (status.ok()) {
             connection->Answer(
                 id, 0, {}, OutBody::Of(served->response.SerializeAsString()));
           } else {
             AnswerStatus(connection, id, status);
           }
         });
    is_serving = false;
  });
}

void ServedCalls::OnRequest(const Hub::ConnectionPtr& connection, uint64_t id,
                            uint8_t method, std::string_view meta,
                            std::unique_ptr<Body> body) {
  using namespace tensorflow::eager;  // NOLINT: names of a dozen messages
  using tensorflow::CleanupGraphRequest;
  using tensorflow::CleanupGraphResponse;
  using tensorflow::RunGraphRequest;
  using tensorflow::RunGraphResponse;

  EagerServiceImpl* const eager = eager_.get();
  tensorflow::WorkerInterface* const worker = worker_;
  switch (static_cast<Method>(method)) {
    case Method::kRecvTensor:
      SendTensor(connection, id, meta);
      return;

#define TF_SYNCREP_METHOD(method)                                         \
  case Method::k##method:                                                 \
    Serve<method##Request, method##Response>(                             \
        connection, id, std::move(body),                                  \
        [eager](CallOptions*, const method##Request* request,             \
                method##Response* response, const StatusCallback& done) { \
          done(eager->method(request, response));                         \
        });                                                               \
    return;
      TF_SYNCREP_METHOD(CreateContext)
      TF_SYNCREP_METHOD(UpdateContext)
      TF_SYNCREP_METHOD(WaitQueueDone)
      TF_SYNCREP_METHOD(KeepAlive)
      TF_SYNCREP_METHOD(CloseContext)
#undef TF_SYNCREP_METHOD

    case Method::kEnqueue:
      Serve<EnqueueRequest, EnqueueResponse>(
          connection, id, std::move(body),
          [eager](CallOptions* options, const EnqueueRequest* request,
                  EnqueueResponse* response, const StatusCallback& done) {
            done(eager->Enqueue(options, request, response));
          });
      return;
    case Method::kRunComponentFunction:
      Serve<RunComponentFunctionRequest, RunComponentFunctionResponse>(
          connection, id, std::move(body),
          [eager](CallOptions* options,
                  const RunComponentFunctionRequest* request,
                  RunComponentFunctionResponse* response,
                  const StatusCallback& done) {
            eager->RunComponentFunction(options, request, response, done);
          });
      return;
    case Method::kRunGraph:
      Serve<RunGraphRequest, RunGraphResponse>(
          connection, id, std::move(body),
          [worker](CallOptions* options, const RunGraphRequest* request,
                   RunGraphResponse* response, const StatusCallback& done) {
            // Both are used until the call has ended. The analyzer loses sight
            // of them: NOLINTBEGIN(clang-analyzer-cplusplus.NewDeleteLeaks)
            const auto wrapped_request =
                std::make_shared<tensorflow::ProtoRunGraphRequest>(request);
            const auto wrapped_response =
                std::make_shared<tensorflow::NonOwnedProtoRunGraphResponse>(
                    response);
            worker->RunGraphAsync(
                options, wrapped_request.get(), wrapped_response.get(),
                [wrapped_request, wrapped_response,
                 done](const absl::Status& status) { done(status); });
            // NOLINTEND(clang-analyzer-cplusplus.NewDeleteLeaks)
          });
      return;
    case Method::kCleanupGraph:
      Serve<CleanupGraphRequest, CleanupGraphResponse>(
          connection, id, std::move(body),
          [worker](CallOptions*, const CleanupGraphRequest* request,
                   CleanupGraphResponse* response, const StatusCallback& done) {
            worker->CleanupGraphAsync(request, response, done);
          });
      return;
  }
  AnswerStatus(
      connection, id,
      absl::UnimplementedError(absl::StrCat("no method of the wire has "
                                            "the number ",
                                            static_cast<int>(method))));
}

void ServedCalls::SendTensor(const Hub::ConnectionPtr& connection, uint64_t id,
                             std::string_view meta) {
  int64_t step;
  std::string key;
  Rendezvous::ParsedKey parsed;
  tensorflow::Device* device;
  absl::Status status = ReadTensorKey(meta, &step, &key)
                            ? Rendezvous::ParseKey(key, &parsed)
                            : absl::InvalidArgumentError("no key of a tensor");
  if (status.ok()) {
    status = env_->device_mgr->LookupDevice(parsed.src_device, &device);
  }
  if (status.ok() &&
      device->attributes().incarnation() != parsed.src_incarnation) {
    // As TensorFlow's worker has it.
    status = absl::AbortedError(absl::StrCat(
        "RecvTensor expects a different device incarnation: ",
        parsed.src_incarnation, " vs. ", device->attributes().incarnation(),
        ". Your worker job (\"", parsed.src_device,
        "\") was probably restarted. Check your worker job for the reason why "
        "it was restarted."));
  }
  if (!status.ok()) {
    AnswerStatus(connection, id, status);
    return;
  }
  connection->SetCancel(id, [env = env_, step] { AbortSoon(env, step); });
  env_->rendezvous_mgr->RecvLocalAsync(
      step, parsed,
      [connection, id](const absl::Status& status, const Rendezvous::Args&,
                       const Rendezvous::Args&, const Tensor& tensor,
                       bool is_dead) {
        if (!status.ok()) {
          AnswerStatus(connection, id, status);
          return;
        }
        std::string description;
        OutBody body;
        WriteTensor(tensor, is_dead, &description, &body);
        connection->Answer(id, 0, description, std::move(body));
      });
}

}  // namespace wire
}  // namespace tf_syncrep
