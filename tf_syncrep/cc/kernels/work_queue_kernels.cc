// Kernels of the WorkQueue ops. They check their inputs, call cc/lib/work_queue
// and set the outputs.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/counted_resource_op.h"
#include "tf_syncrep/cc/kernels/counters.h"
#include "tf_syncrep/cc/kernels/sync_gate_resource.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/lease_timer.h"
#include "tf_syncrep/cc/lib/work_queue.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DEVICE_CPU;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceBase;
using tensorflow::Tensor;
using tensorflow::tstring;

// Holds a queue, and the thread that polls it for its leases.
class WorkQueueResource final : public ResourceBase {
 public:
  explicit WorkQueueResource(const WorkQueueOptions& options)
      : options_(options),
        queue_(std::make_shared<WorkQueue>(options, LeaseTimer::SteadyTime)),
        timer_(queue_, std::clamp<WorkQueue::Time>(options.lease / 8,
                                                   std::chrono::milliseconds(1),
                                                   std::chrono::seconds(1))) {}

  std::string DebugString() const override {
    const WorkQueueStats stats = queue_->Stats();
    return absl::StrCat("WorkQueue at item ", stats.position, " of epoch ",
                        stats.epoch);
  }

  const WorkQueueOptions& options() const { return options_; }

  // Waits keep the queue alive; all end when the resource is destroyed.
  const std::shared_ptr<WorkQueue>& queue() const { return queue_; }

  bool has_thread() const { return timer_.is_running(); }

 private:
  const WorkQueueOptions options_;
  const std::shared_ptr<WorkQueue> queue_;
  LeaseTimer timer_;
};

class WorkQueueOp final : public CountedResourceOp<WorkQueueResource> {
 public:
  explicit WorkQueueOp(OpKernelConstruction* ctx) : CountedResourceOp(ctx) {
    int64_t seed;
    float lease;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_items", &options_.num_items));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("fingerprint", &options_.fingerprint));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_epochs", &options_.num_epochs));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shuffle", &options_.shuffle));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lease_secs", &lease));
    OP_REQUIRES_OK(ctx, CheckPositiveSeconds("lease_secs", lease));
    options_.seed = static_cast<uint64_t>(seed);
    options_.lease = Seconds(lease);
    OP_REQUIRES_OK(ctx, ToAbslStatus(WorkQueue::CheckOptions(options_)));
  }

 private:
  absl::Status CreateResource(WorkQueueResource** resource) override {
    WorkQueueOptions options = options_;
    // Tickets begin with the time, and so come after those of a queue of this
    // name that was lost with its task, as long as there are fewer than a
    // million items a second.
    options.first_ticket =
        std::chrono::duration_cast<std::chrono::microseconds>(
            std::chrono::system_clock::now().time_since_epoch())
            .count();
    return TakeIfItHasThread(new WorkQueueResource(options), "work queue",
                             resource);
  }

  absl::Status VerifyResource(WorkQueueResource* resource) override {
    return CheckSame("work queue", Describe(resource->options()),
                     Describe(options_));
  }

  static std::string Describe(const WorkQueueOptions& options) {
    return absl::StrCat(
        "num_items=", options.num_items, ", num_epochs=", options.num_epochs,
        ", shuffle=", options.shuffle ? "true" : "false",
        ", seed=", options.seed, ", fingerprint=", options.fingerprint,
        ", lease_secs=", std::chrono::duration<double>(options.lease).count());
  }

  WorkQueueOptions options_;
};

class TakeOp final : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    tensorflow::core::RefCountPtr<WorkQueueResource> resource;
    OP_REQUIRES_OK_ASYNC(ctx, LookupHandle(ctx, &resource), done);
    tstring device;
    int64_t incarnation;
    int64_t stream;
    int64_t last;
    OP_REQUIRES_OK_ASYNC(ctx, ScalarInput(ctx, "device", &device), done);
    OP_REQUIRES_OK_ASYNC(ctx, ScalarInput(ctx, "incarnation", &incarnation),
                         done);
    OP_REQUIRES_OK_ASYNC(ctx, ScalarInput(ctx, "stream", &stream), done);
    OP_REQUIRES_OK_ASYNC(ctx, ScalarInput(ctx, "last", &last), done);
    const std::shared_ptr<WorkQueue> queue = resource->queue();
    const auto cancellation = std::make_shared<StepCancellation>(
        ctx, [queue](int64_t wait) { queue->Cancel(wait); });
    OP_REQUIRES_ASYNC(ctx, cancellation->Register(), StepCancelled(), done);
    const WorkReader reader = {
        {std::string(device), static_cast<uint64_t>(incarnation)},
        static_cast<uint64_t>(stream)};
    const WorkQueue::WaitId id =
        queue->Take(reader, last,
                    [ctx, done, cancellation](const GateStatus& status,
                                              const WorkQueue::Grant& grant) {
                      // The item was granted to a step that has been cancelled.
                      // It is granted again when this reader, or another one of
                      // its stream, asks.
                      cancellation->Finish();
                      if (status.code == GateStatus::kOutOfRange) {
                        ctx->SetStatus(SetOutputs(ctx, {}));
                      } else if (status.ok()) {
                        ctx->SetStatus(SetOutputs(ctx, grant));
                      } else {
                        ctx->SetStatus(ToAbslStatus(status));
                      }
                      RunDone(ctx, done);
                    });
    // From here on ctx may be gone.
    cancellation->SetWait(id);
  }

 private:
  static absl::Status SetOutputs(OpKernelContext* ctx,
                                 const WorkQueue::Grant& grant) {
    TF_RETURN_IF_ERROR(SetScalarOutput<int64_t>(ctx, 0, grant.ticket));
    TF_RETURN_IF_ERROR(SetScalarOutput<int64_t>(ctx, 1, grant.item.epoch));
    return SetScalarOutput<int64_t>(ctx, 2, grant.item.item);
  }
};

absl::Status Limit(OpKernelContext* ctx, WorkQueueResource& resource) {
  int64_t epoch;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "epoch", &epoch));
  if (epoch < WorkQueue::kNoLimit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "epoch must be at least 0, or -1 for no limit, but is ", epoch));
  }
  resource.queue()->SetLimit(epoch);
  return absl::OkStatus();
}

absl::Status Leave(OpKernelContext* ctx, WorkQueueResource& resource) {
  tstring device;
  bool gives_back;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "device", &device));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "gives_back", &gives_back));
  resource.queue()->Leave(std::string(device), gives_back);
  return absl::OkStatus();
}

absl::Status Stats(OpKernelContext* ctx, WorkQueueResource& resource) {
  const WorkQueueStats stats = resource.queue()->Stats();
  return SetCounters(ctx, {
                              {"epoch", stats.epoch},
                              {"position", stats.position},
                              {"handed_out", stats.handed_out},
                              {"done", stats.done},
                              {"in_flight", stats.in_flight},
                              {"given_back", stats.given_back},
                              {"repeated", stats.repeated},
                              {"waiting_items", stats.waiting_items},
                              {"late", stats.late},
                              {"waiting", stats.waiting},
                              {"limit", stats.limit},
                          });
}

// A queue's state begins with numbers that must match the queue: of items and
// epochs, and the order.
std::vector<int64_t> Signature(const WorkQueueOptions& options) {
  return {options.num_items, options.fingerprint, options.num_epochs,
          options.shuffle ? 1 : 0,
          options.shuffle ? static_cast<int64_t>(options.seed) : 0};
}

std::string DescribeSignature(const int64_t* numbers) {
  return absl::StrCat("num_items=", numbers[0], " of fingerprint ", numbers[1],
                      ", num_epochs=", numbers[2],
                      ", shuffle=", numbers[3] != 0 ? "true" : "false",
                      ", seed=", numbers[4]);
}

absl::Status SetOutput(OpKernelContext* ctx,
                       const std::vector<int64_t>& numbers) {
  Tensor* output;
  TF_RETURN_IF_ERROR(
      ctx->allocate_output(0, {static_cast<int64_t>(numbers.size())}, &output));
  std::copy(numbers.begin(), numbers.end(), Data<int64_t>(*output));
  return absl::OkStatus();
}

absl::Status Save(OpKernelContext* ctx, WorkQueueResource& resource) {
  const WorkQueueState state = resource.queue()->Save();
  std::vector<int64_t> numbers = Signature(resource.options());
  numbers.insert(numbers.end(),
                 {state.epoch, state.position, state.handed_out, state.done,
                  state.given_back, state.repeated, state.late, state.limit});
  for (const WorkItem& item : state.waiting_items) {
    numbers.insert(numbers.end(), {item.epoch, item.item});
  }
  return SetOutput(ctx, numbers);
}

absl::Status Recent(OpKernelContext* ctx, WorkQueueResource& resource) {
  return SetOutput(ctx, resource.queue()->Recent());
}

absl::Status Restore(OpKernelContext* ctx, WorkQueueResource& resource) {
  const Tensor& input = ctx->input(1);
  const std::vector<int64_t> signature = Signature(resource.options());
  constexpr int64_t kNumCounters = 8;
  const auto begin = static_cast<int64_t>(signature.size()) + kNumCounters;
  if (input.dims() != 1 || input.NumElements() < begin ||
      (input.NumElements() - begin) % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("state must be what WorkQueueSave gave, but has shape ",
                     input.shape().DebugString()));
  }
  const int64_t* const numbers = Data<const int64_t>(input);
  if (!std::equal(signature.begin(), signature.end(), numbers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the state must be of a work queue with these items, epochs and "
        "order: ",
        DescribeSignature(signature.data()),
        ". Received: the state of one with ", DescribeSignature(numbers)));
  }
  const int64_t* const counters = numbers + signature.size();
  WorkQueueState state = {{counters[0], counters[1], counters[2], counters[3],
                           counters[4], counters[5], counters[6], counters[7]},
                          {}};
  for (int64_t i = begin; i < input.NumElements(); i += 2) {
    if (!Append<WorkItem>({numbers[i], numbers[i + 1]}, &state.waiting_items)) {
      return OutOfMemory("the items of a work queue", input.TotalBytes());
    }
  }
  return ToAbslStatus(resource.queue()->Restore(state));
}

template <absl::Status (*kCall)(OpKernelContext*, WorkQueueResource&)>
using QueueOp = CallOp<WorkQueueResource, kCall>;

REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueue").Device(DEVICE_CPU),
                        WorkQueueOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueueTake").Device(DEVICE_CPU),
                        TakeOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueueLeave").Device(DEVICE_CPU),
                        QueueOp<Leave>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueueLimit").Device(DEVICE_CPU),
                        QueueOp<Limit>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueueStats").Device(DEVICE_CPU),
                        QueueOp<Stats>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueueSave").Device(DEVICE_CPU),
                        QueueOp<Save>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueueRecent").Device(DEVICE_CPU),
                        QueueOp<Recent>);
REGISTER_KERNEL_BUILDER(Name("Syncrep>WorkQueueRestore").Device(DEVICE_CPU),
                        QueueOp<Restore>);

}  // namespace
}  // namespace tf_syncrep
