// Compares CombineRows and its gradient with plain loops in double.

#include "tf_syncrep/cc/lib/rows/row_combine.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {
namespace {

// Features of all kinds, and the rows of four shards, one of which is empty,
// and one of which has a single row.
class Batch {
 public:
  explicit Batch(int64_t num_results, int64_t num_rows = 40)
      : num_results_(num_results),
        shard_sizes_({num_rows / 8 * 3, 0, num_rows / 8 * 5 - 1, 1}) {
    for (const Combiner combiner :
         {Combiner::kNone, Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
      for (const bool is_ragged : {false, true}) {
        for (const bool is_weighted : {false, true}) {
          if (combiner == Combiner::kNone && (is_ragged || is_weighted)) {
            continue;
          }
          Add(combiner, is_ragged, is_weighted);
        }
      }
    }
  }

  const std::vector<CombinedFeature>& features() const { return features_; }
  const std::vector<int64_t>& shard_sizes() const { return shard_sizes_; }
  int64_t num_rows() const {
    return std::accumulate(shard_sizes_.begin(), shard_sizes_.end(),
                           int64_t{0});
  }

  // The factor of id `id` in result `result`.
  template <typename Real>
  static Real Factor(const CombinedFeature& feature, int64_t begin, int64_t end,
                     int64_t id) {
    const auto weight = [&](int64_t i) {
      return feature.weights == nullptr ? Real(1) : Real(feature.weights[i]);
    };
    Real divisor = 0;
    if (feature.combiner == Combiner::kNone ||
        feature.combiner == Combiner::kSum) {
      return weight(id);
    }
    for (int64_t i = begin; i < end; ++i) {
      divisor +=
          feature.combiner == Combiner::kMean || feature.weights == nullptr
              ? weight(i)
              : weight(i) * weight(i);
    }
    if (feature.combiner == Combiner::kSqrtn) {
      divisor = std::sqrt(divisor);
    }
    return divisor == 0 ? 0 : 1 / divisor * weight(id);
  }

  static void Range(const CombinedFeature& feature, int64_t result,
                    int64_t* begin, int64_t* end) {
    if (feature.combiner == Combiner::kNone) {
      *begin = result;
      *end = result + 1;
    } else if (feature.row_splits != nullptr) {
      *begin = feature.row_splits[result];
      *end = feature.row_splits[result + 1];
    } else {
      *begin = result * feature.ids_per_result;
      *end = *begin + feature.ids_per_result;
    }
  }

 private:
  void Add(Combiner combiner, bool is_ragged, bool is_weighted) {
    splits_.push_back({0});
    for (int64_t i = 0; i < num_results_; ++i) {
      // Some results have no ids.
      splits_.back().push_back(splits_.back().back() +
                               static_cast<int64_t>(random_() % 4));
    }
    const int64_t num_ids = combiner == Combiner::kNone ? num_results_
                            : is_ragged                 ? splits_.back().back()
                                                        : 3 * num_results_;
    places_.emplace_back();
    weights_.emplace_back();
    for (int64_t i = 0; i < num_ids; ++i) {
      places_.back().push_back(static_cast<int32_t>(random_() % num_rows()));
      // Some weights are 0.
      weights_.back().push_back(static_cast<float>(random_() % 4) / 4);
    }
    features_.push_back({combiner, places_.back().data(), num_ids, num_results_,
                         combiner == Combiner::kNone ? 1 : 3,
                         is_ragged ? splits_.back().data() : nullptr,
                         is_weighted ? weights_.back().data() : nullptr});
  }

  const int64_t num_results_;
  std::mt19937 random_{3};
  const std::vector<int64_t> shard_sizes_;
  std::vector<CombinedFeature> features_;
  // Features point into these; inner vectors do not move when the outer ones
  // grow.
  std::vector<std::vector<int32_t>> places_;
  std::vector<std::vector<int64_t>> splits_;
  std::vector<std::vector<float>> weights_;
};

template <typename T>
class RowCombineTest : public testing::Test {
 protected:
  using Sum = SlotType<T>;

  std::vector<Sum> RandomSums(int64_t size) {
    std::uniform_real_distribution<Sum> uniform(-1, 1);
    std::vector<Sum> values(size);
    for (Sum& value : values) {
      value = uniform(random_);
    }
    return values;
  }

  // The addresses of one vector's parts, with some rows of nobody's behind
  // each.
  template <typename U>
  static std::vector<ShardRows<U>> Shards(const Batch& batch, int64_t width,
                                          U* rows, int64_t num_between = 0) {
    std::vector<ShardRows<U>> shards;
    for (const int64_t size : batch.shard_sizes()) {
      shards.push_back({rows, size});
      rows += (size + num_between) * width;
    }
    return shards;
  }

  std::mt19937 random_{1};
};

using Types = testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(RowCombineTest, Types);

TYPED_TEST(RowCombineTest, EachResultIsTheCombinationOfItsRows) {
  using Sum = SlotType<TypeParam>;
  for (const int64_t width : {1, 16, 37}) {
    const Batch batch(500);
    std::vector<TypeParam> rows;
    for (const Sum value : this->RandomSums(batch.num_rows() * width)) {
      rows.push_back(Narrow<TypeParam>(value));
    }
    std::vector<std::vector<Sum>> first;
    for (const int num_threads : {1, 4}) {
      ThreadSharder sharder(num_threads);
      std::vector<std::vector<Sum>> results;
      std::vector<Sum*> pointers;
      for (const CombinedFeature& feature : batch.features()) {
        results.emplace_back(feature.num_results * width, Sum(99));
        pointers.push_back(results.back().data());
      }
      bool has_memory;
      ASSERT_TRUE(CombineRows<TypeParam>(
          this->template Shards<const TypeParam>(batch, width, rows.data()),
          width, batch.features(), pointers, sharder, &has_memory));
      ASSERT_TRUE(has_memory);
      for (size_t f = 0; f < results.size(); ++f) {
        const CombinedFeature& feature = batch.features()[f];
        for (int64_t i = 0; i < feature.num_results; ++i) {
          int64_t begin;
          int64_t end;
          Batch::Range(feature, i, &begin, &end);
          for (int64_t c = 0; c < width; ++c) {
            double expected = 0;
            for (int64_t id = begin; id < end; ++id) {
              expected += Batch::Factor<double>(feature, begin, end, id) *
                          double{Widen(rows[feature.places[id] * width + c])};
            }
            ASSERT_NEAR(results[f][i * width + c], expected, 1e-5);
          }
        }
      }
      if (first.empty()) {
        first = results;
      }
      ASSERT_EQ(first, results);
    }
  }
}

// The gradients of rows have the same bits as the sums of all shares, in the
// order of features and ids.
TYPED_TEST(RowCombineTest, GradientOfEachRowIsTheSumOfItsIdsShares) {
  using Sum = SlotType<TypeParam>;
  // The last case has several ranges of rows, each worth a thread, one of which
  // spans two shards.
  for (const auto& [width, num_rows, num_results] :
       {std::array<int64_t, 3>{1, 40, 500}, {16, 40, 500}, {37, 8000, 5000}}) {
    const Batch batch(num_results, num_rows);
    std::vector<std::vector<Sum>> gradients;
    std::vector<const Sum*> pointers;
    std::vector<Sum> sums(batch.num_rows() * width, 0);
    for (const CombinedFeature& feature : batch.features()) {
      gradients.push_back(this->RandomSums(feature.num_results * width));
      pointers.push_back(gradients.back().data());
      for (int64_t i = 0; i < feature.num_results; ++i) {
        int64_t begin;
        int64_t end;
        Batch::Range(feature, i, &begin, &end);
        for (int64_t id = begin; id < end; ++id) {
          const Sum factor = Batch::Factor<Sum>(feature, begin, end, id);
          for (int64_t c = 0; c < width; ++c) {
            sums[feature.places[id] * width + c] +=
                factor * gradients.back()[i * width + c];
          }
        }
      }
    }
    // What is behind a shard stays as it was.
    std::vector<TypeParam> before;
    std::vector<TypeParam> expected;
    auto sum = sums.begin();
    for (const int64_t size : batch.shard_sizes()) {
      for (int64_t i = 0; i < size * width; ++i) {
        expected.push_back(Narrow<TypeParam>(*sum++));
      }
      expected.resize(expected.size() + width, Narrow<TypeParam>(Sum(99)));
      before.resize(expected.size(), expected.back());
    }
    for (const int num_threads : {1, 4}) {
      ThreadSharder sharder(num_threads);
      std::vector<TypeParam> rows = before;
      bool has_memory;
      ASSERT_TRUE(CombineRowsGradient<TypeParam>(
          this->template Shards<TypeParam>(batch, width, rows.data(), 1), width,
          batch.features(), pointers, sharder, &has_memory));
      ASSERT_TRUE(has_memory);
      ASSERT_EQ(std::memcmp(expected.data(), rows.data(),
                            rows.size() * sizeof(TypeParam)),
                0);
    }
  }
}

TEST(RowCombineErrorsTest, PlacesWithoutARowAreRefused) {
  ThreadSharder sharder(2);
  std::vector<float> rows(2 * 3);
  std::vector<float> results(3);
  for (const int32_t place : {2, -1}) {
    for (const Combiner combiner : {Combiner::kNone, Combiner::kSum}) {
      const std::vector<CombinedFeature> features = {
          {combiner, &place, 1, 1, 1, nullptr, nullptr}};
      bool has_memory;
      EXPECT_FALSE(CombineRows<float>({{rows.data(), 2}}, 3, features,
                                      {results.data()}, sharder, &has_memory));
      EXPECT_TRUE(has_memory);
      EXPECT_FALSE(CombineRowsGradient<float>({{rows.data(), 2}}, 3, features,
                                              {results.data()}, sharder,
                                              &has_memory));
      EXPECT_TRUE(has_memory);
    }
  }
}

TEST(RowCombineErrorsTest, WhatChangesMeanwhileIsNoRowOfSomebodyElse) {
  // There are enough ids for several threads. The last place and a split are
  // valid half of the time.
  constexpr int64_t kIds = 200000;
  constexpr int64_t kWidth = 4;
  ThreadSharder sharder(2);
  std::vector<int32_t> places(kIds, 1);
  std::vector<int64_t> splits;
  for (int64_t id = 0; id <= kIds; id += 2) {
    splits.push_back(id);
  }
  const auto num_results = static_cast<int64_t>(splits.size()) - 1;
  std::vector<float> rows(2 * kWidth);
  std::vector<float> results(kIds * kWidth);
  std::vector<float> others(num_results * kWidth);
  const std::vector<CombinedFeature> features = {
      {Combiner::kSum, places.data(), kIds, kIds, 1, nullptr, nullptr},
      {Combiner::kMean, places.data(), kIds, num_results, 1, splits.data(),
       nullptr}};
  std::atomic<bool> is_over{false};
  std::thread owner([&] {
    for (int32_t place = 0; !is_over; place = INT32_MAX - place) {
      __atomic_store_n(&places.back(), place, __ATOMIC_RELAXED);
      __atomic_store_n(&splits[num_results / 2], num_results - place,
                       __ATOMIC_RELAXED);
    }
  });
  for (int i = 0; i < 20; ++i) {
    bool has_memory;
    CombineRows<float>({{rows.data(), 2}}, kWidth, features,
                       {results.data(), others.data()}, sharder, &has_memory);
    EXPECT_TRUE(has_memory);
    CombineRowsGradient<float>({{rows.data(), 2}}, kWidth, features,
                               {results.data(), others.data()}, sharder,
                               &has_memory);
    EXPECT_TRUE(has_memory);
  }
  is_over = true;
  owner.join();
}

}  // namespace
}  // namespace tf_syncrep
