// Kernels of the SyncGate ops. They check their inputs, call
// cc/lib/gate/sync_gate and set the outputs.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/counted_resource_op.h"
#include "tf_syncrep/cc/kernels/sync_gate_resource.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DEVICE_CPU;
using tensorflow::DeviceNameUtils;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::tstring;
using tensorflow::core::RefCountPtr;

// Checks a time of which zero means that there is no bound.
absl::Status CheckSeconds(const char* name, float seconds) {
  if (!(seconds >= 0)) {  // NaN included
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must not be negative, but is ", seconds));
  }
  return absl::OkStatus();
}

absl::Status WorkerInput(OpKernelContext* ctx, GateWorker* worker) {
  tstring device;
  int64_t incarnation;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "device", &device));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "incarnation", &incarnation));
  *worker = {std::string(device), static_cast<uint64_t>(incarnation)};
  return absl::OkStatus();
}

// The inputs by which a worker names one of its contributions.
struct Contribution {
  GateWorker worker;
  int64_t generation;
  int64_t round;
};

absl::Status ContributionInput(OpKernelContext* ctx,
                               Contribution* contribution) {
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "generation", &contribution->generation));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "round", &contribution->round));
  return WorkerInput(ctx, &contribution->worker);
}

class SyncGateOp final : public CountedResourceOp<SyncGateResource> {
 public:
  explicit SyncGateOp(OpKernelConstruction* ctx) : CountedResourceOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("quorum", &options_.quorum));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("total", &options_.total));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("strict", &options_.strict));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("spares", &options_.spares));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("gathers", &options_.gathers));
    float lease;
    float start_lease;
    float updater_lease;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lease_secs", &lease));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("start_secs", &start_lease));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("updater_lease_secs", &updater_lease));
    OP_REQUIRES_OK(ctx, CheckPositiveSeconds("lease_secs", lease));
    OP_REQUIRES_OK(ctx, CheckPositiveSeconds("start_secs", start_lease));
    OP_REQUIRES_OK(ctx, CheckSeconds("updater_lease_secs", updater_lease));
    options_.lease = Seconds(lease);
    options_.start_lease = Seconds(start_lease);
    options_.updater_lease = Seconds(updater_lease);
    OP_REQUIRES_OK(ctx, ToAbslStatus(SyncGate::CheckOptions(options_)));
  }

 private:
  absl::Status CreateResource(SyncGateResource** resource) override {
    SyncGateOptions options = options_;
    // Accumulators, workers and chiefs outlive a gate whose task is restarted,
    // and distinguish rounds and generations by number alone. So the numbers of
    // a new gate begin with the time, and come after those of the old gate, as
    // long as there are fewer than a million updates a second.
    options.first_round = options.first_generation =
        std::chrono::duration_cast<std::chrono::microseconds>(
            std::chrono::system_clock::now().time_since_epoch())
            .count();
    return TakeIfItHasThread(new SyncGateResource(options), "gate", resource);
  }

  // The chief chooses the other options anew when it opens the gate.
  absl::Status VerifyResource(SyncGateResource* resource) override {
    return CheckSame("gate", Describe(resource->options()), Describe(options_));
  }

  static std::string Describe(const SyncGateOptions& options) {
    const auto secs = [](SyncGate::Time time) {
      return std::chrono::duration<double>(time).count();
    };
    const auto text = [](bool value) { return value ? "true" : "false"; };
    return absl::StrCat("updater_lease_secs=", secs(options.updater_lease),
                        ", strict=", text(options.strict),
                        ", spares=", text(options.spares),
                        ", gathers=", text(options.gathers));
  }

  SyncGateOptions options_;
};

class TaskIdOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    // Ops of one worker may be on several of its devices.
    std::string task;
    std::string device;
    OP_REQUIRES(
        ctx,
        DeviceNameUtils::SplitDeviceName(ctx->device()->name(), &task, &device),
        absl::InternalError(
            absl::StrCat("not a device name: ", ctx->device()->name())));
    OP_REQUIRES_OK(ctx, SetScalarOutput<tstring>(ctx, 0, task));
    OP_REQUIRES_OK(
        ctx,
        SetScalarOutput<int64_t>(
            ctx, 1,
            static_cast<int64_t>(ctx->device()->attributes().incarnation())));
  }
};

class OpenOp final : public OpKernel {
 public:
  explicit OpenOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("quorum", &terms_.quorum));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("total", &terms_.total));
    for (const auto& [name, lease] :
         {std::pair{"lease_secs", &terms_.lease},
          std::pair{"start_secs", &terms_.start_lease}}) {
      float secs;
      OP_REQUIRES_OK(ctx, ctx->GetAttr(name, &secs));
      if (secs != 0) {
        OP_REQUIRES_OK(ctx, CheckPositiveSeconds(name, secs));
      }
      *lease = Seconds(secs);
    }
  }

  void Compute(OpKernelContext* ctx) override {
    RefCountPtr<SyncGateResource> resource;
    int64_t step;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &resource));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "step", &step));
    OP_REQUIRES_OK(ctx, SetScalarOutput<int64_t>(
                            ctx, 0, resource->gate()->Open(step, terms_)));
  }

 private:
  GateTerms terms_;
};

absl::Status AddPasses(OpKernelContext* ctx, SyncGateResource& resource) {
  int64_t num_passes;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "num_passes", &num_passes));
  resource.gate()->AddPasses(num_passes);
  return absl::OkStatus();
}

absl::Status Admit(OpKernelContext* ctx, SyncGateResource& resource) {
  Contribution contribution;
  bool is_fit;
  TF_RETURN_IF_ERROR(ContributionInput(ctx, &contribution));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "fit", &is_fit));
  SyncGate::Admission admission;
  TF_RETURN_IF_ERROR(ToAbslStatus(
      resource.gate()->Admit(contribution.generation, contribution.worker,
                             contribution.round, is_fit, &admission)));
  return SetScalarOutput(ctx, 0, admission == SyncGate::Admission::kAdmitted);
}

absl::Status Commit(OpKernelContext* ctx, SyncGateResource& resource) {
  Contribution contribution;
  TF_RETURN_IF_ERROR(ContributionInput(ctx, &contribution));
  return SetScalarOutput(
      ctx, 0,
      resource.gate()->Commit(contribution.generation, contribution.worker,
                              contribution.round));
}

absl::Status Abort(OpKernelContext* ctx, SyncGateResource& resource) {
  Contribution contribution;
  TF_RETURN_IF_ERROR(ContributionInput(ctx, &contribution));
  resource.gate()->Abort(contribution.generation, contribution.worker,
                         contribution.round);
  return absl::OkStatus();
}

absl::Status Leave(OpKernelContext* ctx, SyncGateResource& resource) {
  GateWorker worker;
  TF_RETURN_IF_ERROR(WorkerInput(ctx, &worker));
  resource.gate()->Leave(worker);
  return absl::OkStatus();
}

absl::Status Advance(OpKernelContext* ctx, SyncGateResource& resource) {
  int64_t generation;
  int64_t round;
  int64_t step;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "generation", &generation));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "round", &round));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "step", &step));
  bool advanced;
  TF_RETURN_IF_ERROR(ToAbslStatus(
      resource.gate()->Advance(generation, round, step, &advanced)));
  return SetScalarOutput(ctx, 0, advanced);
}

absl::Status CancelUpdater(OpKernelContext* ctx, SyncGateResource& resource) {
  int64_t generation;
  GateWorker worker;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "generation", &generation));
  TF_RETURN_IF_ERROR(WorkerInput(ctx, &worker));
  resource.gate()->CancelUpdater(generation, worker);
  return absl::OkStatus();
}

absl::Status Configure(OpKernelContext* ctx, SyncGateResource& resource) {
  int64_t quorum;
  int64_t total;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "quorum", &quorum));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "total", &total));
  return ToAbslStatus(resource.gate()->Configure(quorum, total));
}

absl::Status Close(OpKernelContext* ctx, SyncGateResource& resource) {
  int64_t generation;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "generation", &generation));
  resource.gate()->Close(generation);
  return absl::OkStatus();
}

absl::Status Fail(OpKernelContext* ctx, SyncGateResource& resource) {
  int32_t code;
  tstring message;
  int64_t generation;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "code", &code));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "message", &message));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "generation", &generation));
  if (code < static_cast<int>(absl::StatusCode::kCancelled) ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "code must be a canonical error code in [1, 16], but is ", code));
  }
  resource.gate()->Fail(generation, {code, std::string(message)});
  return absl::OkStatus();
}

template <absl::Status (*kCall)(OpKernelContext*, SyncGateResource&)>
using GateOp = CallOp<SyncGateResource, kCall>;

class WaitOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) final {
    RefCountPtr<SyncGateResource> resource;
    OP_REQUIRES_OK_ASYNC(ctx, LookupHandle(ctx, &resource), done);
    const std::shared_ptr<SyncGate> gate = resource->gate();
    const auto cancellation = std::make_shared<StepCancellation>(
        ctx, [gate](int64_t wait) { gate->Cancel(wait); });
    OP_REQUIRES_ASYNC(ctx, cancellation->Register(), StepCancelled(), done);
    Wait wait = {ctx, gate, cancellation, done};
    SyncGate::WaitId id = 0;
    absl::Status status = Begin(std::move(wait), &id);
    if (!status.ok()) {
      cancellation->Finish();
      ctx->SetStatus(status);
      done();
      return;
    }
    // From here on ctx may be gone.
    cancellation->SetWait(id);
  }

 protected:
  // One call of the op; its copies are about the same call.
  struct Wait {
    OpKernelContext* ctx;
    std::shared_ptr<SyncGate> gate;
    std::shared_ptr<StepCancellation> cancellation;
    DoneCallback done;

    // Ends the call with integer outputs, as many as the op has, or with the
    // error.
    void End(const absl::Status& error,
             std::initializer_list<int64_t> outputs) const {
      absl::Status status = error;
      int index = 0;
      for (const int64_t output : outputs) {
        if (status.ok() && index < ctx->num_outputs()) {
          status = SetScalarOutput(ctx, index++, output);
        }
      }
      ctx->SetStatus(status);
      RunDone(ctx, done);
    }
  };

 private:
  // Reads the inputs and begins the wait. After an error nothing waits.
  virtual absl::Status Begin(Wait wait, SyncGate::WaitId* id) = 0;
};

class AcquireOp final : public WaitOp {
 public:
  explicit AcquireOp(OpKernelConstruction* ctx) : WaitOp(ctx) {
    bool first;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("first", &first));
    kind_ =
        first ? SyncGate::AcquireKind::kFirst : SyncGate::AcquireKind::kNext;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("quorum", &terms_.quorum));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("total", &terms_.total));
  }

 private:
  absl::Status Begin(Wait wait, SyncGate::WaitId* id) override {
    GateWorker worker;
    TF_RETURN_IF_ERROR(WorkerInput(wait.ctx, &worker));
    SyncGate& gate = *wait.gate;
    *id = gate.Acquire(
        worker, kind_, terms_,
        [wait = std::move(wait), worker](const GateStatus& status,
                                         const SyncGate::Permit& permit) {
          if (!wait.cancellation->Finish() && status.ok()) {
            // The permit was granted to a step that will not use it.
            wait.gate->ReturnPermit(worker, permit);
            wait.End(StepCancelled(), {});
            return;
          }
          wait.End(ToAbslStatus(status),
                   {permit.generation, permit.round, permit.step});
        });
    return absl::OkStatus();
  }

  SyncGate::AcquireKind kind_;
  GateTerms terms_;
};

// A wait of the updater, or of its chief, for a round.
class QuorumOp : public WaitOp {
 public:
  using WaitOp::WaitOp;

 private:
  virtual SyncGate::WaitId Call(SyncGate& gate, int64_t generation,
                                SyncGate::QuorumCallback done) = 0;

  absl::Status Begin(Wait wait, SyncGate::WaitId* id) final {
    int64_t generation;
    TF_RETURN_IF_ERROR(ScalarInput(wait.ctx, "generation", &generation));
    SyncGate& gate = *wait.gate;
    *id = Call(gate, generation,
               [wait = std::move(wait)](const GateStatus& status,
                                        const SyncGate::Quorum& quorum) {
                 wait.cancellation->Finish();
                 wait.End(ToAbslStatus(status),
                          {quorum.round, quorum.num_gradients});
               });
    return absl::OkStatus();
  }
};

class WaitQuorumOp final : public QuorumOp {
 public:
  explicit WaitQuorumOp(OpKernelConstruction* ctx) : QuorumOp(ctx) {
    float timeout;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("timeout_secs", &timeout));
    OP_REQUIRES_OK(ctx, CheckSeconds("timeout_secs", timeout));
    timeout_ = Seconds(timeout);
  }

 private:
  SyncGate::WaitId Call(SyncGate& gate, int64_t generation,
                        SyncGate::QuorumCallback done) override {
    return gate.WaitQuorum(generation, timeout_, std::move(done));
  }

  SyncGate::Time timeout_;
};

class FlushOp final : public QuorumOp {
  using QuorumOp::QuorumOp;
  SyncGate::WaitId Call(SyncGate& gate, int64_t generation,
                        SyncGate::QuorumCallback done) override {
    return gate.Flush(generation, std::move(done));
  }
};

class DrainOp final : public QuorumOp {
  using QuorumOp::QuorumOp;
  SyncGate::WaitId Call(SyncGate& gate, int64_t generation,
                        SyncGate::QuorumCallback done) override {
    return gate.Drain(generation, [done = std::move(done)](
                                      const GateStatus& s) { done(s, {}); });
  }
};

#define TF_SYNCREP_REGISTER(NAME, OP) \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>" NAME).Device(DEVICE_CPU), OP)

TF_SYNCREP_REGISTER("SyncGate", SyncGateOp);
TF_SYNCREP_REGISTER("TaskId", TaskIdOp);
TF_SYNCREP_REGISTER("SyncGateOpen", OpenOp);
TF_SYNCREP_REGISTER("SyncGateAddPasses", GateOp<AddPasses>);
TF_SYNCREP_REGISTER("SyncGateAcquire", AcquireOp);
TF_SYNCREP_REGISTER("SyncGateAdmit", GateOp<Admit>);
TF_SYNCREP_REGISTER("SyncGateCommit", GateOp<Commit>);
TF_SYNCREP_REGISTER("SyncGateAbort", GateOp<Abort>);
TF_SYNCREP_REGISTER("SyncGateLeave", GateOp<Leave>);
TF_SYNCREP_REGISTER("SyncGateWaitQuorum", WaitQuorumOp);
TF_SYNCREP_REGISTER("SyncGateFlush", FlushOp);
TF_SYNCREP_REGISTER("SyncGateAdvance", GateOp<Advance>);
TF_SYNCREP_REGISTER("SyncGateDrain", DrainOp);
TF_SYNCREP_REGISTER("SyncGateCancelUpdater", GateOp<CancelUpdater>);
TF_SYNCREP_REGISTER("SyncGateConfigure", GateOp<Configure>);
TF_SYNCREP_REGISTER("SyncGateClose", GateOp<Close>);
TF_SYNCREP_REGISTER("SyncGateFail", GateOp<Fail>);

#undef TF_SYNCREP_REGISTER

}  // namespace
}  // namespace tf_syncrep
