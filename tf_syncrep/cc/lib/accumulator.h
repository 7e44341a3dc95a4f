// The bookkeeping of an accumulator: which gradients count, and who waits for
// how many of them.

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
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// What an accumulator divides the sum of its gradients by.
enum class Reduction {
  kMean,         // dense: their number; sparse: per row, how many contained it
  kSum,          // 1
  kCountedMean,  // their number, for sparse gradients too
};

// How an accumulator reads the number that comes with each gradient.
enum class AccumulatorMode {
  // It is the step at which the gradient was computed. Accepted from the
  // accumulator's own step on; a take accepts whatever is in and advances the
  // step by one. As TensorFlow's ConditionalAccumulator.
  kStep,
  // It is the round that the gradient belongs to. The accumulator holds one
  // round: an older gradient is dropped, a newer one replaces all that is held.
  kRound,
};

// What gradients add up to: the arithmetic, apart from the bookkeeping. Not
// thread-safe.
class GradientSum {
 public:
  virtual ~GradientSum() = default;

  // Adds `other`, a sum of the same kind over gradients of the same shape. It
  // is used up.
  virtual void Merge(GradientSum& other, Sharder& sharder) = 0;

  // How much memory it holds, in bytes.
  virtual int64_t held_bytes() const = 0;

  // What the device that computes has said about work that it refused, or null.
  // The sum is then useless.
  virtual const char* error() const { return nullptr; }
};

// Gradients that left an accumulator.
struct TakenGradients {
  // One sum or more, oldest step first; none after a cancelled take.
  std::vector<std::unique_ptr<GradientSum>> sums;
  int64_t num_gradients = 0;
  // Dimensions that all of them share: see Accumulator::Push().
  std::vector<int64_t> shape;

  // The sum of all.
  GradientSum& Merged(Sharder& sharder);
};

// One request for the gradients of an accumulator, by Accumulator::Take().
class PendingTake {
 public:
  // `num_required` is at least 1. `done` is called once, with the gradients, or
  // with none when the take was cancelled first; by the thread that pushes the
  // last gradient, takes or cancels, and with no lock held.
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
  int64_t pushed = 0;    // well-formed gradients that came
  int64_t accepted = 0;  // of these, not dropped on arrival
  int64_t stale = 0;     // dropped on arrival: of an older step or round
  int64_t voided = 0;  // accepted, then discarded: by a newer round or SetStep
  int64_t taken = 0;   // left through a take
  int64_t takes = 0;   // takes that were given gradients
  int64_t bytes = 0;   // of memory that is held now
};

// Collects gradients of one variable until somebody takes their sum.
//
// Thread-safe. One mutex guards all state, the sums included: a push adds its
// gradient, or notes it, under it, so that gradients add up in the order in
// which they arrive. What is left to do happens after a take, outside of it.
class Accumulator {
 public:
  // For gradients of up to so many steps the sums are kept apart, so that
  // SetStep() can discard the older ones. Beyond that the two oldest are
  // merged, and count as the older of the two.
  static constexpr int kMaxSums = 4;

  enum class PushResult {
    kAccepted,
    kStale,
    kShapeMismatch,  // with the gradients that are held; nothing has changed
    kOutOfMemory,    // reported by `add`; the gradient is not counted
  };

  Accumulator(AccumulatorMode mode,
              std::function<std::unique_ptr<GradientSum>()> make_sum)
      : mode_(mode), make_sum_(std::move(make_sum)) {}

  Accumulator(const Accumulator&) = delete;
  Accumulator& operator=(const Accumulator&) = delete;

  AccumulatorMode mode() const { return mode_; }

  // Drops and counts a gradient that is of an older step or round, before any
  // work is done for it. Returns whether it was; if not, push it.
  bool DropIfStale(int64_t step);

  // Offers a gradient of a step, or of a round in round mode. If it is
  // accepted, `add`, called under the lock, adds it to the sum that it is
  // given, or returns false when there is no memory for that. It is told
  // whether other pushes wait for the lock: work may be left for them to do.
  //
  // All gradients that are held at one time have the same `shape`: the
  // dimensions of a dense gradient, or of a row of a sparse one. On a mismatch
  // `held_shape` is set to theirs.
  PushResult Push(int64_t step, const std::vector<int64_t>& shape,
                  const std::function<bool(GradientSum&, bool)>& add,
                  Sharder& sharder, std::vector<int64_t>* held_shape);

  // Step mode: gives `take` everything that is held as soon as this is
  // `num_required` gradients or more, and advances the step by one. Takes are
  // served in order. Returns at once; the wait ends with a push or with
  // Cancel().
  void Take(const std::shared_ptr<PendingTake>& take);

  // Ends `take` with no gradients, unless it has ended. May be called before
  // Take(), which then ends it at once.
  void Cancel(const std::shared_ptr<PendingTake>& take);

  // Round mode: takes the gradients of `round` if exactly `num_gradients` of
  // them are held; gradients of that round are stale from then on. Otherwise
  // nothing changes, `taken` stays empty, and `held_round` and `num_held` say
  // what is there instead.
  //
  // `prepare`, if there is one, is called under the lock with the gradients'
  // shape (see Push()) when they are there. If it returns false, nothing
  // changes.
  bool TakeRound(int64_t round, int64_t num_gradients, TakenGradients* taken,
                 int64_t* held_round, int64_t* num_held,
                 const std::function<bool(const std::vector<int64_t>& shape)>&
                     prepare = nullptr);

  // Sets the step and discards the gradients of older ones. In round mode sets
  // the round, which may go back, and discards the gradients of any other.
  // Returns what the step or round was before.
  int64_t SetStep(int64_t step);

  int64_t num_held() const;

  AccumulatorStats stats() const;

 private:
  // The gradients of one step.
  struct StepSum {
    int64_t step;
    int64_t num_gradients;
    std::unique_ptr<GradientSum> sum;
  };

  // A take that has its gradients, and is to be notified without the lock.
  struct Served {
    std::shared_ptr<PendingTake> take;
    TakenGradients taken;
  };

  bool CountIfStale(int64_t step) TF_SYNCREP_REQUIRES(mu_);
  std::vector<StepSum>::iterator SumFor(int64_t step, Sharder& sharder)
      TF_SYNCREP_REQUIRES(mu_);
  // Appends sums to `discarded`, whose destruction, which may take long, is
  // left to after the lock.
  void DiscardExcept(bool (*keep)(int64_t held, int64_t step), int64_t step,
                     std::vector<StepSum>* discarded) TF_SYNCREP_REQUIRES(mu_);
  TakenGradients TakeAll() TF_SYNCREP_REQUIRES(mu_);
  std::vector<Served> ServeWaiting() TF_SYNCREP_REQUIRES(mu_);

  static void Tell(std::vector<Served> served);

  const AccumulatorMode mode_;
  const std::function<std::unique_ptr<GradientSum>()> make_sum_;

  std::atomic<int> waiting_pushes_{0};  // for mu_

  mutable Mutex mu_;
  // Step mode: gradients from this step on are accepted. Round mode: the round
  // that is held, or the first that may come.
  int64_t step_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  // Ascending steps; none without gradients.
  std::vector<StepSum> sums_ TF_SYNCREP_GUARDED_BY(mu_);
  // Gradients in all of sums_, and their shape.
  int64_t num_held_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> shape_ TF_SYNCREP_GUARDED_BY(mu_);
  // First come, first served.
  std::deque<std::shared_ptr<PendingTake>> waiting_ TF_SYNCREP_GUARDED_BY(mu_);
  // All but `step`, `held` and `bytes`.
  AccumulatorStats counts_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ACCUMULATOR_H_
