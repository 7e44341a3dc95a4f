// Accumulators get what may come over the wire: gradients of any step or round,
// with any rows and any values, and takes and resets in any order.
// Their counts must add up, and the rows of a result must ascend.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/fuzz_input.h"
#include "tests/cc/inline_sharder.h"
#include "tf_syncrep/cc/lib/accumulator.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {
namespace {

template <typename T>
class AccumulatorFuzz {
 public:
  explicit AccumulatorFuzz(FuzzInput* input)
      : input_(*input),
        is_sparse_(input_.Pick(2) == 0),
        reduction_(static_cast<Reduction>(input_.Pick(3))),
        accumulator_(input_.Pick(2) == 0 ? AccumulatorMode::kStep
                                         : AccumulatorMode::kRound,
                     [this] { return MakeSum(); }) {}

  void Run() {
    while (!input_.is_over() && !testing::Test::HasFailure()) {
      Call();
      const AccumulatorStats stats = accumulator_.stats();
      EXPECT_EQ(stats.pushed, stats.accepted + stats.stale)
          << "pushed = accepted + stale";
      EXPECT_EQ(stats.accepted, stats.taken + stats.voided + stats.held)
          << "accepted = taken + voided + held";
      EXPECT_GE(stats.held, 0) << "what is held is not negative";
    }
    for (const auto& take : takes_) {
      accumulator_.Cancel(take);
    }
    EXPECT_EQ(num_ended_, static_cast<int64_t>(takes_.size()))
        << "each take ends once";
  }

 private:
  std::unique_ptr<GradientSum> MakeSum() {
    if (is_sparse_) {
      // There are few bytes, so that held gradients are merged now and then.
      return std::make_unique<SparseGradientSum<T>>(memory_, BestCpuLevel(),
                                                    /*min_merge_bytes=*/64);
    }
    return std::make_unique<CpuDenseGradientSum<T>>();
  }

  OwnedBuffer Allocate(size_t bytes) {
    if (bytes == 0) {
      bytes = 1;
    }
    const std::shared_ptr<uint8_t[]> memory(new uint8_t[bytes]());
    return {memory.get(), memory};
  }

  OwnedBuffer Values(int64_t num_elements) {
    OwnedBuffer values = Allocate(num_elements * sizeof(T));
    for (int64_t i = 0; i < num_elements; ++i) {
      const T value = input_.Get<T>();
      std::memcpy(static_cast<T*>(values.data) + i, &value, sizeof(T));
    }
    if (input_.Pick(2) == 0) {
      // somebody else's memory, which has to be copied
      kept_.push_back(values.owner);
      values.owner = nullptr;
    }
    return values;
  }

  // Pushes as the ops do, after they have checked that shapes fit and that no
  // row is negative.
  void Push() {
    const int64_t step = input_.Number();
    const int64_t row_size = input_.Pick(5);
    InlineSharder sharder(3);
    std::vector<int64_t> held;
    Array<int64_t> rows;
    if (is_sparse_) {
      EXPECT_TRUE(rows.Allocate(input_.Pick(20)))
          << "there is memory for some rows";
      for (int64_t& row : rows) {
        const int64_t number = input_.Number();
        row = number < 0 ? -(number + 1) : number;
      }
    }
    const auto num_elements = is_sparse_ ? rows.size() * row_size : row_size;
    const OwnedBuffer values = Values(num_elements);
    accumulator_.Push(
        step, {row_size},
        [&](GradientSum& sum, bool /*others_wait*/) {
          if (is_sparse_) {
            return static_cast<SparseGradientSum<T>&>(sum).Add(
                std::move(rows), row_size, values, sharder);
          }
          return static_cast<DenseGradientSum<T>&>(sum).Add(
              values, num_elements,
              [this](int64_t size) { return AllocateSum(size); },
              input_.Pick(2) == 1, sharder);
        },
        &held);
    kept_.clear();
  }

  OwnedBuffer AllocateSum(int64_t size) {
    // Sometimes there is no memory.
    return input_.Pick(16) == 1 ? OwnedBuffer()
                                : Allocate(size * sizeof(SlotType<T>));
  }

  void Finish(TakenGradients taken) {
    if (taken.sum == nullptr) {
      return;
    }
    InlineSharder sharder(3);
    GradientSum& sum = *taken.sum;
    if (is_sparse_) {
      SparseResult result;
      static_cast<SparseGradientSum<T>&>(sum).Finish(
          reduction_, taken.num_gradients, sharder, &result);
      const auto* rows = static_cast<const int64_t*>(result.rows.data);
      for (int64_t i = 1; i < result.num_rows; ++i) {
        EXPECT_TRUE(rows[i - 1] < rows[i]) << "rows ascend, each once";
      }
      return;
    }
    static_cast<DenseGradientSum<T>&>(sum).Finish(
        taken.num_gradients,
        [this](int64_t size) { return Allocate(size * sizeof(T)); }, sharder);
  }

  void Call() {
    switch (input_.Pick(8)) {
      case 0: {
        if (accumulator_.mode() == AccumulatorMode::kRound) {
          TakenGradients taken;
          int64_t held_round;
          int64_t num_held;
          const AccumulatorStats stats = accumulator_.stats();
          const bool is_any = input_.Pick(4) == 0;
          if (accumulator_.TakeRound(is_any ? input_.Number() : stats.step,
                                     is_any ? input_.Number() : stats.held,
                                     &taken, &held_round, &num_held)) {
            Finish(std::move(taken));
          }
          return;
        }
        // The op refuses numbers below 1.
        takes_.push_back(std::make_shared<PendingTake>(
            1 + input_.Pick(4), [this](TakenGradients taken) {
              ++num_ended_;
              Finish(std::move(taken));
            }));
        accumulator_.Take(takes_.back());
        return;
      }
      case 1:
        accumulator_.SetStep(input_.Number());
        return;
      case 2:
        if (!takes_.empty()) {
          accumulator_.Cancel(takes_[input_.Pick(256) % takes_.size()]);
        }
        return;
      default:
        Push();
        return;
    }
  }

  FuzzInput& input_;
  const bool is_sparse_;
  const Reduction reduction_;
  const std::shared_ptr<SparseSumMemory> memory_ =
      std::make_shared<SparseSumMemory>();
  Accumulator accumulator_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::shared_ptr<PendingTake>> takes_;
  int64_t num_ended_ = 0;
};

template <typename T>
class AccumulatorFuzzTest : public testing::Test {};
using Types = testing::Types<float, double, Half>;
TYPED_TEST_SUITE(AccumulatorFuzzTest, Types);

TYPED_TEST(AccumulatorFuzzTest, CountsAddUpAndRowsOfAResultAscend) {
  RunSeeds([](FuzzInput* input) { AccumulatorFuzz<TypeParam>(input).Run(); });
}

}  // namespace
}  // namespace tf_syncrep
