#include "tf_syncrep/cc/tf/step_cancellation.h"

#include <utility>

namespace tf_syncrep {

StepCancellation::StepCancellation(tensorflow::OpKernelContext* ctx,
                                   std::function<void(int64_t)> cancel_wait)
    : manager_(ctx->cancellation_manager()),
      token_(manager_ == nullptr ? 0 : manager_->get_cancellation_token()),
      cancel_wait_(std::move(cancel_wait)) {}

bool StepCancellation::Register() {
  return manager_ == nullptr ||
         manager_->RegisterCallback(
             token_, [self = shared_from_this()] { self->Cancel(); });
}

void StepCancellation::SetWait(int64_t wait) {
  bool cancelled;
  {
    const MutexLock lock(mu_);
    wait_ = wait;
    cancelled = cancelled_;
  }
  if (cancelled) {
    cancel_wait_(wait);
  }
}

bool StepCancellation::Finish() {
  // Deregistering must not wait for Cancel() to return, since this code may run
  // within it.
  return manager_ == nullptr || manager_->TryDeregisterCallback(token_);
}

void StepCancellation::Cancel() {
  int64_t wait;
  {
    const MutexLock lock(mu_);
    cancelled_ = true;
    wait = wait_;
  }
  if (wait != 0) {
    cancel_wait_(wait);
  }
}

void RunDone(tensorflow::OpKernelContext* ctx,
             tensorflow::AsyncOpKernel::DoneCallback done) {
  if (ctx->runner() != nullptr) {
    (*ctx->runner())(std::move(done));
  } else {
    done();
  }
}

}  // namespace tf_syncrep
