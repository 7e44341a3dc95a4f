// Random numbers that are the same on every machine.

#ifndef TESTS_SIMULATOR_RANDOM_H_
#define TESTS_SIMULATOR_RANDOM_H_

#include <cstdint>

namespace tf_syncrep::simulator {

// SplitMix64 (Steele, Lea, Flood 2014). The standard library's distributions
// may give other numbers on other machines.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // One of 0, ..., n - 1.
  int64_t Pick(int64_t n) { return static_cast<int64_t>(Next() % n); }

  // Returns true `n` times in a thousand.
  bool PerMille(int64_t n) { return Pick(1000) < n; }

 private:
  uint64_t state_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_RANDOM_H_
