// The bookkeeping of an accumulator: which gradients count, and which takes
// wait for how many of them.

#ifndef TF_SYNCREP_CC_LIB_ACCUMULATOR_H_
#define TF_SYNCREP_CC_LIB_ACCUMULATOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// How an accumulator divides the sum of its gradients.
enum class Reduction {
  // dense: by their number; sparse: by the number that contained the row
  kMean,
  kSum,          // not at all
  kCountedMean,  // by the number of gradients, for sparse gradients too
};

// How an accumulator reads the number that comes with each gradient.
enum class AccumulatorMode {
  // The number is the step at which the gradient was computed. Gradients of the
  // accumulator's own step and of later ones are accepted. A take takes all
  // gradients that are held, and advances the step by one, as TensorFlow's
  // ConditionalAccumulator does.
  kStep,
  // The number is the round that the gradient belongs to. The accumulator holds
  // one round: an older gradient is dropped, a newer one replaces all that are
  // held.
  kRound,
};

// The sum of gradients: the arithmetic without the bookkeeping. Not
// thread-safe.
class GradientSum {
 public:
  virtual ~GradientSum() = default;

  // How much memory the sum holds, in bytes.
  virtual int64_t held_bytes() const = 0;

  // The error with which the device refused work, or null. After an error the
  // sum is useless.
  virtual const char* error() const { return nullptr; }
};

// Gradients that left an accumulator.
struct TakenGradients {
  std::unique_ptr<GradientSum> sum;  // null after a cancelled take
  int64_t num_gradients = 0;
  // The dimensions that all gradients share: see Accumulator::Push().
  std::vector<int64_t> shape;
};

// One request for the gradients of an accumulator, by Accumulator::Take().
class PendingTake {
 public:
  // `num_required` is at least 1. `done` is called once: with the gradients, or
  // with none if the take was cancelled first. The thread that pushes the last
  // gradient, takes or cancels calls it, with no lock held.
  PendingTake(int64_t num_required, std::function<void(TakenGradients)> done)
      : num_required_(num_required), done_(std::move(done)) {}

 private:
  friend class Accumulator;

  const int64_t num_required_;
  std::function<void(TakenGradients)> done_;
  bool cancelled_ = false;  // guarded by the accumulator's mu_
};

// Counts of gradients, from the accumulator's creation on:
//   pushed = accepted + stale
//   accepted = taken + voided + held
struct AccumulatorStats {
  int64_t step = 0;      // the accumulator's step, or its round
  int64_t held = 0;      // in the accumulator now
  int64_t pushed = 0;    // well-formed gradients that arrived
  int64_t accepted = 0;  // of these, those not dropped on arrival
  int64_t stale = 0;     // dropped on arrival, being of an older step or round
  // accepted, then discarded by a newer round or by SetStep() in round mode
  int64_t voided = 0;
  int64_t taken = 0;  // left through a take
  int64_t takes = 0;  // takes that got gradients
  int64_t bytes = 0;  // memory that is held now
};

// Collects gradients of one variable until somebody takes their sum.
//
// Thread-safe. One mutex guards all state, the sums included. A push adds its
// gradient, or notes it, under the mutex, so that gradients add up in the order
// in which they arrive. The work that remains is done after a take, without the
// mutex.
class Accumulator {
 public:
  enum class PushResult {
    kAccepted,
    kStale,
    // the shape differs from that of the held gradients; nothing has changed
    kShapeMismatch,
    kOutOfMemory,  // reported by `add`; the gradient is not counted
  };

  Accumulator(AccumulatorMode mode,
              std::function<std::unique_ptr<GradientSum>()> make_sum)
      : mode_(mode), make_sum_(std::move(make_sum)) {}

  Accumulator(const Accumulator&) = delete;
  Accumulator& operator=(const Accumulator&) = delete;

  AccumulatorMode mode() const { return mode_; }

  // Drops and counts a gradient of an older step or round, before any work is
  // done for it. Returns whether it did; if not, the caller pushes the
  // gradient.
  bool DropIfStale(int64_t step);

  // Offers a gradient of a step, or of a round in round mode. If the gradient
  // is accepted, `add` is called under the lock with a sum; it adds the
  // gradient to the sum, or returns false when there is no memory for that. Its
  // second argument says whether other pushes wait for the lock, so that
  // work may be left to them.
  //
  // All gradients that are held at one time have the same `shape`: the
  // dimensions of a dense gradient, or of one row of a sparse gradient. On a
  // mismatch `held_shape` is set to the shape of the held gradients.
  PushResult Push(int64_t step, const std::vector<int64_t>& shape,
                  const std::function<bool(GradientSum&, bool)>& add,
                  std::vector<int64_t>* held_shape);

  // Step mode: as soon as `num_required` gradients or more are held, gives all
  // of them to `take` and advances the step by one. Takes are served in order.
  // Returns at once; the wait ends with a push or with Cancel().
  void Take(const std::shared_ptr<PendingTake>& take);

  // Ends `take` without gradients, unless it has ended already. If Cancel() is
  // called before Take(), Take() ends it at once.
  void Cancel(const std::shared_ptr<PendingTake>& take);

  // Round mode: takes the gradients of `round` if exactly `num_gradients` of
  // them are held. From then on gradients of that round are stale. Otherwise
  // nothing changes, `taken` stays empty, and `held_round` and `num_held` say
  // which round and how many gradients are held instead.
  bool TakeRound(int64_t round, int64_t num_gradients, TakenGradients* taken,
                 int64_t* held_round, int64_t* num_held);

  // Sets the step; what is held stays, as in TensorFlow's accumulator. In round
  // mode it sets the round, which may go back, and discards the gradients of
  // another one. Returns the step or round before the call.
  int64_t SetStep(int64_t step);

  int64_t num_held() const;

  AccumulatorStats stats() const;

 private:
  // A take that has its gradients; it is to be notified without the lock.
  struct Served {
    std::shared_ptr<PendingTake> take;
    TakenGradients taken;
  };

  bool CountIfStale(int64_t step) TF_SYNCREP_REQUIRES(mu_);
  // Returns the sum that is held, which counts as voided. Its destruction may
  // take long, and is left until the lock is released.
  std::unique_ptr<GradientSum> Discard() TF_SYNCREP_REQUIRES(mu_);
  TakenGradients TakeAll() TF_SYNCREP_REQUIRES(mu_);
  std::vector<Served> ServeWaiting() TF_SYNCREP_REQUIRES(mu_);

  static void Tell(std::vector<Served> served);

  const AccumulatorMode mode_;
  const std::function<std::unique_ptr<GradientSum>()> make_sum_;

  std::atomic<int> waiting_pushes_{0};  // how many wait for mu_

  mutable Mutex mu_;
  // Step mode: the first step whose gradients are accepted. Round mode: the
  // round that is held, or the first that may come.
  int64_t step_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  // Null if there are no gradients; their number and shape.
  std::unique_ptr<GradientSum> sum_ TF_SYNCREP_GUARDED_BY(mu_);
  int64_t num_held_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> shape_ TF_SYNCREP_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<PendingTake>> waiting_ TF_SYNCREP_GUARDED_BY(mu_);
  // All counts but `step`, `held` and `bytes`.
  AccumulatorStats counts_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_H_
