// Ends the waits of asynchronous kernels when their step is cancelled.

#ifndef TF_SYNCREP_CC_TF_STEP_CANCELLATION_H_
#define TF_SYNCREP_CC_TF_STEP_CANCELLATION_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Connects one wait, which has a callback and a number by which it can be
// cancelled, with the step that it belongs to. The calls are, in this order:
// Register(), the call that begins the wait, SetWait(). The wait's callback
// calls Finish(), perhaps before SetWait().
class StepCancellation : public std::enable_shared_from_this<StepCancellation> {
 public:
  // `cancel_wait` must have no effect on a wait that has ended. It is called
  // without a lock held, and must keep alive what it needs.
  StepCancellation(tensorflow::OpKernelContext* ctx,
                   std::function<void(int64_t)> cancel_wait);

  // Returns false if the step is cancelled already.
  bool Register();

  void SetWait(int64_t wait);

  // To be called when the wait has ended, before `done` of the kernel. Returns
  // false if the step has been cancelled, so that nobody will see the kernel's
  // outputs.
  bool Finish();

 private:
  void Cancel();

  // null if the step is never cancelled
  tensorflow::CancellationManager* const manager_;
  const tensorflow::CancellationToken token_;
  const std::function<void(int64_t)> cancel_wait_;
  Mutex mu_;
  int64_t wait_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  bool cancelled_ TF_SYNCREP_GUARDED_BY(mu_) = false;
};

inline absl::Status StepCancelled() {
  return absl::CancelledError("The step was cancelled.");
}

inline bool IsCancelled(tensorflow::OpKernelContext* ctx) {
  auto* const manager = ctx->cancellation_manager();
  return manager != nullptr && manager->IsCancelled();
}

// Calls `done` on a thread of the step's executor. So the thread that ended the
// wait, and that may end many waits, does not run what follows in each of their
// graphs.
void RunDone(tensorflow::OpKernelContext* ctx,
             tensorflow::AsyncOpKernel::DoneCallback done);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_STEP_CANCELLATION_H_
