// Gradients for tests of accumulators: random values, in memory with an owner.

#ifndef TF_SYNCREP_TESTS_CC_RANDOM_GRADIENTS_H_
#define TF_SYNCREP_TESTS_CC_RANDOM_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {

// Memory for `size` elements, kept alive by its owner.
template <typename T>
OwnedBuffer NewBuffer(int64_t size) {
  const auto owner = std::make_shared<std::vector<T>>(size);
  return {owner->data(), owner};
}

// `count` values between -2 and 2.
template <typename T, typename Random>
std::vector<T> RandomValues(int64_t count, Random& random) {
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<T> values(count);
  for (T& value : values) {
    value = Narrow<T>(static_cast<SlotType<T>>(uniform(random)));
  }
  return values;
}

// A dense gradient that depends only on the seed.
template <typename T>
std::vector<T> RandomGradient(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  return RandomValues<T>(size, random);
}

// Dense gradients with the seeds 0, 1 and so on.
template <typename T>
std::vector<std::vector<T>> RandomGradients(int num_gradients, int64_t size) {
  std::vector<std::vector<T>> gradients;
  for (int i = 0; i < num_gradients; ++i) {
    gradients.push_back(RandomGradient<T>(size, i));
  }
  return gradients;
}

// A sparse gradient: `values` has a row for each of `rows`.
template <typename T>
struct Gradient {
  std::vector<int64_t> rows;
  std::vector<T> values;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_TESTS_CC_RANDOM_GRADIENTS_H_
