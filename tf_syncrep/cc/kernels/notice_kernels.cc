// The ops by which others learn of a task's notice, and functions for the task
// itself. The logic is in lib/notice.h.

#include <cstdint>
#include <memory>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_syncrep/cc/lib/notice.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/step_cancellation.h"

namespace tf_syncrep {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

class AwaitNoticeOp final : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    bool until_end;
    OP_REQUIRES_OK_ASYNC(ctx, ScalarInput(ctx, "until_end", &until_end), done);
    const auto cancellation = std::make_shared<StepCancellation>(
        ctx, [](int64_t wait) { Notice::OfProcess().Cancel(wait); });
    OP_REQUIRES_ASYNC(ctx, cancellation->Register(), StepCancelled(), done);
    const Notice::WaitId id = Notice::OfProcess().Wait(
        until_end, [ctx, done, cancellation](bool is_cancelled) {
          cancellation->Finish();
          if (is_cancelled) {
            ctx->SetStatus(StepCancelled());
          }
          RunDone(ctx, done);
        });
    // From here on ctx may be gone.
    cancellation->SetWait(id);
  }
};

class NoteWorkOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    auto* const manager = ctx->cancellation_manager();
    if (manager != nullptr) {
      Notice::OfProcess().BeginWork();
      // It is called when the step is cancelled, and otherwise by the manager's
      // destructor, which is when the step is over.
      const bool is_registered =
          manager->RegisterCallback(manager->get_cancellation_token(),
                                    [] { Notice::OfProcess().EndWork(); });
      if (!is_registered) {
        Notice::OfProcess().EndWork();
      }
    }
    OP_REQUIRES_OK(
        ctx, SetScalarOutput<bool>(ctx, 0, Notice::OfProcess().IsGiven()));
  }
};

class HadNoticeOp final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(
        ctx, SetScalarOutput<bool>(ctx, 0, Notice::OfProcess().WasGiven()));
  }
};

REGISTER_KERNEL_BUILDER(Name("Syncrep>AwaitNotice").Device(DEVICE_CPU),
                        AwaitNoticeOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>NoteWork").Device(DEVICE_CPU),
                        NoteWorkOp);
REGISTER_KERNEL_BUILDER(Name("Syncrep>HadNotice").Device(DEVICE_CPU),
                        HadNoticeOp);

}  // namespace
}  // namespace tf_syncrep

// For a process that listens by itself. Ops would not do: a graph of v1 that is
// final takes none, and an eager one may wait for the steps that hang, or for
// the servers that are gone, for which the process is to end in time.
extern "C" {

__attribute__((visibility("default"))) void tf_syncrep_begin_notice() noexcept {
  tf_syncrep::Notice::OfProcess().Begin();
}

__attribute__((visibility("default"))) int tf_syncrep_has_notice() noexcept {
  return tf_syncrep::Notice::OfProcess().IsGiven() ? 1 : 0;
}

__attribute__((visibility("default"))) int tf_syncrep_end_notice() noexcept {
  return tf_syncrep::Notice::OfProcess().End() ? 1 : 0;
}

}  // extern "C"
