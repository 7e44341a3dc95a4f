// Calls with arbitrary arguments, as they may come over the wire: the same ones
// for the same seed.

#ifndef TESTS_CC_FUZZ_INPUT_H_
#define TESTS_CC_FUZZ_INPUT_H_

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace tf_syncrep {

// Draws values. It is over when it has drawn as many bytes as it was given.
class FuzzInput {
 public:
  FuzzInput(uint32_t seed, int64_t size) : random_(seed), size_(size) {}

  bool is_over() const { return size_ <= 0; }

  template <typename T>
  T Get() {
    T value;
    unsigned char bytes[sizeof(T)];
    for (unsigned char& byte : bytes) {
      byte = static_cast<unsigned char>(random_());
    }
    std::memcpy(&value, bytes, sizeof(T));
    size_ -= sizeof(T);
    return value;
  }

  // Returns one of 0, ..., n - 1; n is at most 256.
  int Pick(int n) { return Get<uint8_t>() % n; }

  // Returns small numbers, those at the ends of the range, and any others.
  int64_t Number() {
    switch (Pick(8)) {
      case 0:
        return std::numeric_limits<int64_t>::max() - Pick(3);
      case 1:
        return std::numeric_limits<int64_t>::min() + Pick(3);
      case 2:
        return Get<int64_t>();
      default:
        return Pick(8) - 2;
    }
  }

 private:
  std::mt19937 random_;
  int64_t size_;
};

// Calls `run` with the input of each of 1,000 seeds, and of further ones for as
// many seconds as TF_SYNCREP_FUZZ_SECS says, until something does not hold for
// one.
template <typename Run>
void RunSeeds(const Run& run) {
  using Clock = std::chrono::steady_clock;
  const char* const secs = std::getenv("TF_SYNCREP_FUZZ_SECS");
  const auto until = Clock::now() + std::chrono::seconds(
                                        secs == nullptr ? 0 : std::atoi(secs));
  uint32_t seed = 0;
  for (; seed < 1000 || Clock::now() < until; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FuzzInput input(seed, /*size=*/4096);
    run(&input);
    if (testing::Test::HasFailure()) {
      return;
    }
  }
  testing::Test::RecordProperty("seeds", std::to_string(seed));
}

}  // namespace tf_syncrep

#endif  // TESTS_CC_FUZZ_INPUT_H_
