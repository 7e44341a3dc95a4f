#include "tf_syncrep/cc/wire/eager_client.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/platform/protobuf.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"
#include "tf_syncrep/cc/wire/methods.h"

namespace tf_syncrep {
namespace wire {
namespace {

using tensorflow::CallOptions;
using tensorflow::StatusCallback;
using tensorflow::core::RefCountPtr;
using tensorflow::eager::EagerClient;
using tensorflow::eager::EnqueueRequest;
using tensorflow::eager::EnqueueResponse;
using tensorflow::protobuf::MessageLite;

class WireEagerClient : public EagerClient {
 public:
  WireEagerClient(const Local& local, std::string task)
      : local_(local), task_(std::move(task)) {}

  bool allow_multiple_pending_requests() const override { return false; }

#define TF_SYNCREP_METHOD(method)                                           \
  void method##Async(const tensorflow::eager::method##Request* request,     \
                     tensorflow::eager::method##Response* response,         \
                     StatusCallback done) override {                        \
    Start(Method::k##method, nullptr, *request, response, std::move(done)); \
  }
  TF_SYNCREP_METHOD(CreateContext)
  TF_SYNCREP_METHOD(UpdateContext)
  TF_SYNCREP_METHOD(WaitQueueDone)
  TF_SYNCREP_METHOD(KeepAlive)
  TF_SYNCREP_METHOD(CloseContext)
#undef TF_SYNCREP_METHOD

#define TF_SYNCREP_METHOD(method)                                           \
  void method##Async(CallOptions* options,                                  \
                     const tensorflow::eager::method##Request* request,     \
                     tensorflow::eager::method##Response* response,         \
                     StatusCallback done) override {                        \
    Start(Method::k##method, options, *request, response, std::move(done)); \
  }
  TF_SYNCREP_METHOD(Enqueue)
  TF_SYNCREP_METHOD(RunComponentFunction)
#undef TF_SYNCREP_METHOD

  void CreateContextAsync(
      const tensorflow::eager::CreateContextRequest* request,
      tensorflow::eager::CreateContextResponse* response, StatusCallback done,
      int64_t /*init_timeout_in_ms*/, int /*retries*/) override {
    // The connection is there: nothing is to be waited for, or tried again.
    Start(Method::kCreateContext, nullptr, *request, response, std::move(done));
  }

  // As gRPC's client does without streams: the caller waits.
  void StreamingEnqueueAsync(bool /*enable_streaming_enqueue*/,
                             CallOptions* options,
                             const EnqueueRequest* request,
                             EnqueueResponse* response,
                             StatusCallback done) override {
    absl::Notification ended;
    absl::Status status;
    EnqueueAsync(options, request, response, [&](const absl::Status& s) {
      status = s;
      ended.Notify();
    });
    ended.WaitForNotification();
    done(status);
  }

 private:
  void Start(Method method, CallOptions* options, const MessageLite& request,
             MessageLite* response, StatusCallback done) {
    Ref();
    StatusCallback ended =
        [this, done = std::move(done)](const absl::Status& status) {
          done(status);
          Unref();
        };
    if (const auto connection = local_.hub->Find(task_)) {
      Call(local_, connection, task_, method, options, request, response,
           std::move(ended));
      return;
    }
    // It was lost: the task may be back.
    const std::shared_ptr<MessageLite> kept(request.New());
    kept->CheckTypeAndMergeFrom(request);
    local_.hub->Await(task_, [this, method, options, kept, response,
                              ended = std::move(ended)](
                                 const Hub::ConnectionPtr& found,
                                 bool has_answered) {
      if (found == nullptr) {
        // The context is with the services of the wire, on all tasks.
        const absl::string_view why =
            has_answered
                ? ", which answers, but has no grpc+tfs any more, by which the "
                  "coordinator has begun: it is left out until it is started "
                  "with grpc+tfs, or the coordinator is started again"
                : "";
        ended(absl::UnavailableError(absl::StrCat(
            "no connection to ", task_, why,
            "\nAdditional GRPC error information from remote target ", task_)));
        return;
      }
      Call(local_, found, task_, method, options, *kept, response, ended);
    });
  }

  const Local local_;
  const std::string task_;
};

}  // namespace

absl::Status WireEagerClients::GetClient(const std::string& target,
                                         RefCountPtr<EagerClient>* client) {
  const std::string task = target.substr(0, target.find("/device:"));
  MutexLock lock(mu_);
  RefCountPtr<EagerClient>& found = clients_[task];
  if (found == nullptr) {
    found.reset(new WireEagerClient(local_, task));
  }
  found->Ref();
  client->reset(found.get());
  return absl::OkStatus();
}

}  // namespace wire
}  // namespace tf_syncrep
