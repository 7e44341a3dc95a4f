#include "tf_syncrep/cc/lib/row_sketch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "tf_syncrep/cc/lib/row_hash.h"

namespace tf_syncrep {

void RowSketch::Insert(int64_t row) {
  const uint64_t hash = HashRow(row);
  const uint64_t index = hash >> (64 - kIndexBits);
  // The lowest bits set, so that there is always a one.
  const uint64_t rest = (hash << kIndexBits) | ((1u << kIndexBits) - 1);
  const uint8_t rank = static_cast<uint8_t>(__builtin_clzll(rest) + 1);
  registers_[index] = std::max(registers_[index], rank);
}

void RowSketch::Merge(const RowSketch& other) {
  for (size_t i = 0; i < registers_.size(); ++i) {
    registers_[i] = std::max(registers_[i], other.registers_[i]);
  }
}

int64_t RowSketch::Estimate() const {
  constexpr double kM = kNumRegisters;
  constexpr double kAlpha = 0.7213 / (1.0 + 1.079 / kM);
  double inverse_sum = 0;
  int num_zeros = 0;
  for (const uint8_t rank : registers_) {
    inverse_sum += 1.0 / static_cast<double>(uint64_t{1} << rank);
    num_zeros += rank == 0 ? 1 : 0;
  }
  const double estimate = kAlpha * kM * kM / inverse_sum;
  if (estimate <= 2.5 * kM && num_zeros > 0) {
    // Few rows: how many registers are untouched tells more.
    return std::llround(kM * std::log(kM / num_zeros));
  }
  return std::llround(estimate);
}

}  // namespace tf_syncrep
