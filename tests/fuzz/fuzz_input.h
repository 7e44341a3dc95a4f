// Makes calls with arbitrary arguments from bytes.

#ifndef TESTS_FUZZ_FUZZ_INPUT_H_
#define TESTS_FUZZ_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace tf_syncrep {

// Ends the process, for the fuzzer to notice, if something does not hold.
inline void Require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
  }
}

// Reads values from bytes, and zeros after their end.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool is_over() const { return size_ == 0; }

  template <typename T>
  T Get() {
    T value{};
    const size_t size = size_ < sizeof(T) ? size_ : sizeof(T);
    if (size > 0) {
      std::memcpy(&value, data_, size);
    }
    data_ += size;
    size_ -= size;
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
  const uint8_t* data_;
  size_t size_;
};

}  // namespace tf_syncrep

#endif  // TESTS_FUZZ_FUZZ_INPUT_H_
