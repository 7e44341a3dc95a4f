// Accumulator: which gradients count, which are dropped, and who is served
// when.

#include "tf_syncrep/cc/lib/accumulator.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

using PushResult = Accumulator::PushResult;

// A sum of integers, one per gradient.
class IntegerSum final : public GradientSum {
 public:
  int64_t held_bytes() const override { return 8; }

  int64_t total = 0;
};

// An accumulator of integers.
class Fixture {
 public:
  explicit Fixture(AccumulatorMode mode = AccumulatorMode::kStep)
      : accumulator(mode, [] { return std::make_unique<IntegerSum>(); }) {}

  PushResult Push(int64_t step, int64_t gradient,
                  const std::vector<int64_t>& shape = {}) {
    return accumulator.Push(
        step, shape,
        [gradient](GradientSum& sum, bool /*others_wait*/) {
          static_cast<IntegerSum&>(sum).total += gradient;
          return true;
        },
        &held_shape);
  }

  Accumulator accumulator;
  std::vector<int64_t> held_shape;  // of the last mismatch
};

int64_t Total(const TakenGradients& taken) {
  return static_cast<IntegerSum&>(*taken.sum).total;
}

// A take and its result, from whichever thread.
struct Taker {
  explicit Taker(int64_t num_required)
      : take(std::make_shared<PendingTake>(
            num_required, [this](TakenGradients taken) {
              EXPECT_FALSE(result.has_value()) << "told twice";
              result = std::move(taken);
            })) {}

  bool waits() const { return !result.has_value(); }
  bool cancelled() const {
    return result.has_value() && result->sum == nullptr;
  }

  std::optional<TakenGradients> result;
  std::shared_ptr<PendingTake> take;
};

// The two identities of the counts.
void ExpectBalanced(const AccumulatorStats& stats) {
  EXPECT_EQ(stats.pushed, stats.accepted + stats.stale);
  EXPECT_EQ(stats.accepted, stats.taken + stats.voided + stats.held);
}

TEST(AccumulatorTest, TakeGetsAllThatIsIn) {
  Fixture f;
  for (const int64_t gradient : {1, 10, 100}) {
    EXPECT_EQ(f.Push(0, gradient), PushResult::kAccepted);
  }
  Taker taker(2);
  f.accumulator.Take(taker.take);
  ASSERT_FALSE(taker.waits());
  EXPECT_EQ(taker.result->num_gradients, 3);
  EXPECT_EQ(Total(*taker.result), 111);
  EXPECT_EQ(f.accumulator.num_held(), 0);
}

TEST(AccumulatorTest, TakeAdvancesTheStepByOne) {
  Fixture f;
  f.accumulator.SetStep(7);
  f.Push(9, 1);
  Taker taker(1);
  f.accumulator.Take(taker.take);
  EXPECT_EQ(f.accumulator.stats().step, 8);
  EXPECT_EQ(f.Push(7, 1), PushResult::kStale);
  EXPECT_EQ(f.Push(8, 1), PushResult::kAccepted);
}

TEST(AccumulatorTest, TakeWaitsForTheLastGradient) {
  Fixture f;
  Taker taker(3);
  f.accumulator.Take(taker.take);
  f.Push(0, 1);
  f.Push(0, 2);
  EXPECT_TRUE(taker.waits());
  f.Push(0, 4);
  ASSERT_FALSE(taker.waits());
  EXPECT_EQ(Total(*taker.result), 7);
}

TEST(AccumulatorTest, PushesAreToldOfOthersThatWaitAndTheLastOfNone) {
  Fixture f;
  std::vector<bool> told;  // guarded by the accumulator's lock
  const auto push = [&] {
    std::vector<int64_t> shape;
    f.accumulator.Push(
        0, {},
        [&](GradientSum&, bool others_wait) {
          told.push_back(others_wait);
          std::this_thread::yield();
          return true;
        },
        &shape);
  };
  // Waits until some have met at the lock.
  do {
    told.clear();
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 100; ++k) {
          push();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    ASSERT_EQ(told.size(), 300);
    EXPECT_FALSE(told.back());
  } while (std::count(told.begin(), told.end(), true) == 0);
}

TEST(AccumulatorTest, StaleGradientsAreDroppedAndCounted) {
  Fixture f;
  f.accumulator.SetStep(5);
  EXPECT_TRUE(f.accumulator.DropIfStale(4));
  EXPECT_FALSE(f.accumulator.DropIfStale(5));
  EXPECT_EQ(f.Push(-1, 1), PushResult::kStale);
  EXPECT_EQ(f.Push(5, 1), PushResult::kAccepted);
  EXPECT_EQ(f.Push(6, 1), PushResult::kAccepted);
  const AccumulatorStats stats = f.accumulator.stats();
  EXPECT_EQ(stats.pushed, 4);
  EXPECT_EQ(stats.stale, 2);
  EXPECT_EQ(stats.held, 2);
  ExpectBalanced(stats);
}

TEST(AccumulatorTest, TakesAreServedInOrder) {
  Fixture f;
  Taker first(2);
  Taker second(1);
  f.accumulator.Take(first.take);
  f.accumulator.Take(second.take);
  f.Push(0, 1);
  EXPECT_TRUE(first.waits());
  EXPECT_TRUE(second.waits()) << "would fit, but is not its turn";
  f.Push(0, 2);
  ASSERT_FALSE(first.waits());
  EXPECT_EQ(Total(*first.result), 3);
  EXPECT_TRUE(second.waits());
  f.Push(1, 4);
  ASSERT_FALSE(second.waits());
  EXPECT_EQ(Total(*second.result), 4);
  EXPECT_EQ(f.accumulator.stats().takes, 2);
}

TEST(AccumulatorTest, CancelEndsTheWaitAndLetsTheNextPass) {
  Fixture f;
  Taker greedy(10);
  Taker modest(1);
  f.Push(0, 5);
  f.accumulator.Take(greedy.take);
  f.accumulator.Take(modest.take);
  EXPECT_TRUE(modest.waits());
  f.accumulator.Cancel(greedy.take);
  EXPECT_TRUE(greedy.cancelled());
  ASSERT_FALSE(modest.waits());
  EXPECT_EQ(Total(*modest.result), 5);
}

TEST(AccumulatorTest, CancelBeforeTakeEndsItAtOnce) {
  Fixture f;
  f.Push(0, 1);
  Taker taker(1);
  f.accumulator.Cancel(taker.take);
  EXPECT_TRUE(taker.waits());
  f.accumulator.Take(taker.take);
  EXPECT_TRUE(taker.cancelled());
  EXPECT_EQ(f.accumulator.num_held(), 1);
}

TEST(AccumulatorTest, CancelAfterTheEndDoesNothing) {
  Fixture f;
  f.Push(0, 1);
  Taker taker(1);
  f.accumulator.Take(taker.take);
  f.accumulator.Cancel(taker.take);
  f.accumulator.Cancel(taker.take);
  EXPECT_EQ(taker.result->num_gradients, 1);
}

TEST(AccumulatorTest, SetStepKeepsWhatIsHeld) {
  Fixture f;
  f.Push(0, 1);
  f.Push(3, 10);
  EXPECT_EQ(f.accumulator.SetStep(3), 0);
  EXPECT_EQ(f.Push(2, 100), PushResult::kStale);
  Taker taker(2);
  f.accumulator.Take(taker.take);
  EXPECT_EQ(Total(*taker.result), 11);
  EXPECT_EQ(f.accumulator.stats().voided, 0);
  ExpectBalanced(f.accumulator.stats());
}

TEST(AccumulatorTest, SetStepMayGoBack) {
  Fixture f;
  f.accumulator.SetStep(10);
  f.Push(10, 1);
  EXPECT_EQ(f.accumulator.SetStep(3), 10);
  EXPECT_EQ(f.accumulator.num_held(), 1);
  EXPECT_EQ(f.Push(3, 1), PushResult::kAccepted);
}

TEST(AccumulatorTest, ManyStepsAtOnceAreAllTaken) {
  Fixture f;
  int64_t expected = 0;
  for (int64_t step = 20; step-- > 0;) {
    f.Push(step, 1 << step);
    expected += 1 << step;
  }
  EXPECT_EQ(f.accumulator.num_held(), 20);
  Taker taker(20);
  f.accumulator.Take(taker.take);
  ASSERT_FALSE(taker.waits());
  EXPECT_EQ(Total(*taker.result), expected);
}

TEST(AccumulatorTest, GradientsHeldTogetherHaveOneShape) {
  Fixture f;
  EXPECT_EQ(f.Push(0, 1, {2, 3}), PushResult::kAccepted);
  EXPECT_EQ(f.Push(0, 1, {3, 2}), PushResult::kShapeMismatch);
  EXPECT_EQ(f.held_shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(f.Push(0, 1, {6}), PushResult::kShapeMismatch);
  EXPECT_EQ(f.accumulator.num_held(), 1);
  Taker taker(1);
  f.accumulator.Take(taker.take);
  EXPECT_EQ(taker.result->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(f.Push(1, 1, {3, 2}), PushResult::kAccepted);
}

TEST(AccumulatorTest, WithoutMemoryNothingIsCounted) {
  Fixture f;
  std::vector<int64_t> shape;
  const auto fail = [](GradientSum&, bool) { return false; };
  EXPECT_EQ(f.accumulator.Push(0, {}, fail, &shape), PushResult::kOutOfMemory);
  f.Push(0, 3);
  EXPECT_EQ(f.accumulator.Push(0, {}, fail, &shape), PushResult::kOutOfMemory);
  EXPECT_EQ(f.accumulator.stats().pushed, 1);
  Taker taker(1);
  f.accumulator.Take(taker.take);
  EXPECT_EQ(Total(*taker.result), 3);
}

TEST(AccumulatorTest, TheLastStepOfAllDoesNotOverflow) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  Fixture f;
  f.accumulator.SetStep(kLast);
  EXPECT_EQ(f.Push(kLast, 1), PushResult::kAccepted);
  Taker taker(1);
  f.accumulator.Take(taker.take);
  EXPECT_EQ(f.accumulator.stats().step, kLast);
}

class RoundTest : public testing::Test {
 protected:
  RoundTest() : f(AccumulatorMode::kRound) {}

  bool TakeRound(int64_t round, int64_t n) {
    taken = {};
    return f.accumulator.TakeRound(round, n, &taken, &held_round, &num_held);
  }

  Fixture f;
  TakenGradients taken;
  int64_t held_round = -1;
  int64_t num_held = -1;
};

TEST_F(RoundTest, TakeGivesExactlyTheRound) {
  f.Push(4, 1);
  f.Push(4, 2);
  ASSERT_TRUE(TakeRound(4, 2));
  EXPECT_EQ(Total(taken), 3);
  EXPECT_EQ(taken.num_gradients, 2);
}

TEST_F(RoundTest, AnotherNumberIsRefusedAndChangesNothing) {
  f.Push(4, 1);
  for (const auto& [round, n] :
       {std::pair{4, 2}, {3, 1}, {5, 1}, {5, 0}, {4, 0}}) {
    EXPECT_FALSE(TakeRound(round, n)) << round << ", " << n;
    EXPECT_TRUE(taken.sum == nullptr);
    EXPECT_EQ(held_round, 4);
    EXPECT_EQ(num_held, 1);
  }
  EXPECT_TRUE(TakeRound(4, 1));
}

TEST_F(RoundTest, AnEmptyRoundCannotBeTaken) {
  EXPECT_FALSE(TakeRound(0, 0));
  EXPECT_EQ(num_held, 0);
}

TEST_F(RoundTest, OlderRoundsAreDropped) {
  f.Push(4, 1);
  EXPECT_EQ(f.Push(3, 10), PushResult::kStale);
  ASSERT_TRUE(TakeRound(4, 1));
  EXPECT_EQ(f.Push(4, 10), PushResult::kStale) << "came after the take";
  EXPECT_EQ(f.accumulator.stats().stale, 2);
  ExpectBalanced(f.accumulator.stats());
}

TEST_F(RoundTest, ANewerRoundReplacesWhatIsHeld) {
  f.Push(4, 1);
  f.Push(4, 2);
  EXPECT_EQ(f.Push(6, 8), PushResult::kAccepted);
  EXPECT_EQ(f.accumulator.stats().voided, 2);
  ASSERT_TRUE(TakeRound(6, 1));
  EXPECT_EQ(Total(taken), 8);
  ExpectBalanced(f.accumulator.stats());
}

TEST_F(RoundTest, ANewerRoundMayHaveAnotherShape) {
  f.Push(4, 1, {2});
  EXPECT_EQ(f.Push(5, 1, {3}), PushResult::kAccepted);
}

TEST_F(RoundTest, SetStepKeepsOnlyItsOwnRound) {
  f.Push(6, 1);
  f.accumulator.SetStep(6);
  EXPECT_EQ(f.accumulator.num_held(), 1);
  f.accumulator.SetStep(2);  // a new life of the gate may count from the start
  EXPECT_EQ(f.accumulator.num_held(), 0);
  EXPECT_EQ(f.Push(2, 5), PushResult::kAccepted);
  EXPECT_TRUE(TakeRound(2, 1));
  ExpectBalanced(f.accumulator.stats());
}

TEST(AccumulatorThreadsTest, NothingIsLostOrCountedTwice) {
  constexpr int kPushers = 32;
  constexpr int kPushes = 200;
  constexpr int kTakers = 16;
  Fixture f;
  std::atomic<int64_t> taken_total{0};
  std::atomic<int64_t> taken_gradients{0};
  std::atomic<int64_t> told{0};
  std::atomic<int64_t> asked{0};
  std::atomic<bool> pushing{true};
  std::vector<std::thread> pushers;
  for (int i = 0; i < kPushers; ++i) {
    pushers.emplace_back([&f] {
      for (int k = 0; k < kPushes; ++k) {
        f.accumulator.num_held();
        std::vector<int64_t> shape;
        f.accumulator.Push(
            1 << 30, {},
            [](GradientSum& sum, bool /*others_wait*/) {
              ++static_cast<IntegerSum&>(sum).total;
              return true;
            },
            &shape);
      }
    });
  }
  std::vector<std::thread> takers;
  for (int i = 0; i < kTakers; ++i) {
    takers.emplace_back([&, i] {
      std::mt19937 random(i);
      while (pushing) {
        const auto take = std::make_shared<PendingTake>(
            1 + random() % 5, [&](TakenGradients taken) {
              ++told;
              if (taken.sum != nullptr) {
                taken_gradients += taken.num_gradients;
                taken_total += Total(taken);
              }
            });
        ++asked;
        if (random() % 3 == 0) {
          std::thread canceller([&] { f.accumulator.Cancel(take); });
          f.accumulator.Take(take);
          canceller.join();
        } else {
          f.accumulator.Take(take);
          f.accumulator.Cancel(take);
        }
      }
    });
  }
  for (std::thread& thread : pushers) {
    thread.join();
  }
  pushing = false;
  for (std::thread& thread : takers) {
    thread.join();
  }
  EXPECT_EQ(told, asked);
  EXPECT_EQ(taken_gradients, taken_total);
  const AccumulatorStats stats = f.accumulator.stats();
  EXPECT_EQ(stats.pushed, kPushers * kPushes);
  EXPECT_EQ(stats.stale, 0);
  EXPECT_EQ(stats.taken, taken_gradients);
  ExpectBalanced(stats);
}

}  // namespace
}  // namespace tf_syncrep
