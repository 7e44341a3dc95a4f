#include "tf_syncrep/cc/wire/rendezvous.h"

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/wire/methods.h"
#include "tf_syncrep/cc/wire/tensor_frames.h"

namespace tf_syncrep {
namespace wire {
namespace {

using tensorflow::Allocator;
using tensorflow::BaseRecvTensorCall;
using tensorflow::BaseRemoteRendezvous;
using tensorflow::Tensor;
using RendezvousPtr = tensorflow::core::RefCountPtr<BaseRemoteRendezvous>;

// The task of a device of that name.
std::string TaskOf(absl::string_view device) {
  return std::string(device.substr(0, device.find("/device:")));
}

class WireRendezvous : public BaseRemoteRendezvous {
 public:
  WireRendezvous(const Local& local, int64_t step_id,
                 std::function<RendezvousPtr()> make_grpc)
      : BaseRemoteRendezvous(local.env, step_id),
        local_(local),
        make_grpc_(std::move(make_grpc)) {}

  // Those that wait by gRPC wait for the same step.
  void StartAbort(const absl::Status& status) override;

 protected:
  void RecvFromRemoteAsync(const ParsedKey& parsed, const Args& args,
                           DoneCallback done) override;

 private:
  class Recv;

  void RecvOver(Hub::ConnectionPtr connection, const std::string& task,
                const ParsedKey& parsed, Allocator* allocator, const Args& args,
                DoneCallback done);
  // The rendezvous by gRPC, for what does not go over the wire.
  BaseRemoteRendezvous* Grpc();

  const Local local_;
  const std::function<RendezvousPtr()> make_grpc_;
  Mutex mu_;
  RendezvousPtr grpc_ TF_SYNCREP_GUARDED_BY(mu_);
  absl::Status abort_status_ TF_SYNCREP_GUARDED_BY(mu_);
};

// A tensor that a step waits for. Deletes itself when it is there, or will not
// come; the connection says that once.
class WireRendezvous::Recv : public BaseRecvTensorCall {
 public:
  Recv(WireRendezvous* rendezvous, Hub::ConnectionPtr connection,
       std::string task, Allocator* allocator, const Args& args,
       DoneCallback done)
      : rendezvous_(rendezvous),
        connection_(std::move(connection)),
        task_(std::move(task)),
        allocator_(allocator),
        args_(args),
        done_(std::move(done)) {
    rendezvous_->Ref();
  }
  ~Recv() override { rendezvous_->Unref(); }

  // Not used: see Ask.
  void Start(std::function<void()>) override {}

  void Ask(absl::string_view key) {
    rendezvous_->RegisterCall(this, args_);  // aborts it if the step is over
    NoteRequest(Method::kRecvTensor, task_);
    const std::string meta = WriteTensorKey(rendezvous_->step_id_, key);
    Allocator* const allocator = allocator_;
    const Hub::ConnectionPtr connection = connection_;
    // Nothing of this is used after Ask: the answer may have come.
    const auto state = state_;
    const uint64_t id = connection->Ask(
        static_cast<uint8_t>(Method::kRecvTensor),
        std::string_view(meta.data(), meta.size()), {},
        [allocator](std::string_view answer, uint64_t size) {
          return MakeTensorBody(answer, size, allocator);
        },
        [this](Answer answer) { End(std::move(answer)); });
    bool is_aborted;
    {
      MutexLock lock(state->mu);
      state->id = id;
      is_aborted = !state->status.ok();
    }
    if (is_aborted) {
      connection->Cancel(id);
    }
  }

  void StartAbort(const absl::Status& status) override {
    uint64_t id;
    {
      MutexLock lock(state_->mu);
      if (state_->status.ok()) {
        state_->status = status;
      }
      id = state_->id;
    }
    if (id != 0) {
      // Not here: locks of the rendezvous are held.
      rendezvous_->local_.hub->CancelSoon(connection_, id);
    }
  }

  absl::Status status() const override {
    MutexLock lock(state_->mu);
    return state_->status;
  }

 private:
  // What is shared with Ask, which may return after the end.
  struct State {
    Mutex mu;
    absl::Status status TF_SYNCREP_GUARDED_BY(mu);
    uint64_t id TF_SYNCREP_GUARDED_BY(mu) = 0;
  };

  void End(Answer answer) {
    rendezvous_->DeregisterCall(this, args_);
    absl::Status status = this->status();
    if (status.ok()) {
      status = StatusOf(answer, task_);
    }
    Tensor tensor;
    bool is_dead = false;
    if (status.ok()) {
      status = ReadTensor(answer.meta, answer.body.get(), allocator_, &tensor,
                          &is_dead);
    }
    done_(status, Args(), args_, tensor, is_dead);
    delete this;
  }

  WireRendezvous* const rendezvous_;
  const Hub::ConnectionPtr connection_;
  const std::string task_;
  Allocator* const allocator_;
  const Args args_;
  const DoneCallback done_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

void WireRendezvous::RecvFromRemoteAsync(const ParsedKey& parsed,
                                         const Args& args, DoneCallback done) {
  tensorflow::Device* device;
  if (parsed.src.type != tensorflow::DEVICE_CPU ||
      parsed.dst.type != tensorflow::DEVICE_CPU ||
      !session()->device_mgr()->LookupDevice(parsed.dst_device, &device).ok()) {
    Grpc()->RecvAsync(parsed, args, std::move(done));
    return;
  }
  const std::string task = TaskOf(parsed.src_device);
  Allocator* const allocator = device->GetAllocator(args.alloc_attrs);
  if (auto connection = local_.hub->Find(task)) {
    RecvOver(std::move(connection), task, parsed, allocator, args,
             std::move(done));
    return;
  }
  if (!local_.hub->MayHaveWire(task)) {
    Grpc()->RecvAsync(parsed, args, std::move(done));
    return;
  }
  // It is new, or it was lost and may be back; gRPC would say for seconds that
  // there is no connection, without asking again.
  Ref();
  local_.hub->Await(
      task, [this, task, parsed, allocator, args, done = std::move(done)](
                Hub::ConnectionPtr connection, bool) {
        if (connection != nullptr) {
          RecvOver(std::move(connection), task, parsed, allocator, args, done);
        } else {
          Grpc()->RecvAsync(parsed, args, done);
        }
        Unref();
      });
}

void WireRendezvous::RecvOver(Hub::ConnectionPtr connection,
                              const std::string& task, const ParsedKey& parsed,
                              Allocator* allocator, const Args& args,
                              DoneCallback done) {
  auto* recv = new Recv(this, std::move(connection), task, allocator, args,
                        std::move(done));
  recv->Ask(parsed.FullKey());
}

void WireRendezvous::StartAbort(const absl::Status& status) {
  BaseRemoteRendezvous* grpc;
  {
    MutexLock lock(mu_);
    abort_status_.Update(status);
    grpc = grpc_.get();
  }
  if (grpc != nullptr) {
    grpc->StartAbort(status);
  }
  BaseRemoteRendezvous::StartAbort(status);
}

BaseRemoteRendezvous* WireRendezvous::Grpc() {
  absl::Status aborted;
  BaseRemoteRendezvous* grpc;
  {
    MutexLock lock(mu_);
    if (grpc_ == nullptr) {
      grpc_ = make_grpc_();
      grpc_->Initialize(session()).IgnoreError();
      aborted = abort_status_;
    }
    grpc = grpc_.get();
  }
  if (!aborted.ok()) {
    grpc->StartAbort(aborted);
  }
  return grpc;
}

}  // namespace

tensorflow::core::RefCountPtr<BaseRemoteRendezvous> WireRendezvousMgr::Create(
    int64_t step_id, const tensorflow::WorkerEnv* env) {
  return RendezvousPtr(new WireRendezvous(
      local_, step_id,
      [this, step_id, env] { return RpcRendezvousMgr::Create(step_id, env); }));
}

}  // namespace wire
}  // namespace tf_syncrep
