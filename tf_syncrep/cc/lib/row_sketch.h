// Estimates how many different rows there are in a stream of row numbers.

#ifndef TF_SYNCREP_CC_LIB_ROW_SKETCH_H_
#define TF_SYNCREP_CC_LIB_ROW_SKETCH_H_

#include <array>
#include <cstdint>

namespace tf_syncrep {

// HyperLogLog (Flajolet et al., 2007) with 1024 registers: a kilobyte, whatever
// the number of rows, and a standard error of about 3%.
class RowSketch {
 public:
  void Insert(int64_t row);

  // As if the rows of `other` had been inserted here.
  void Merge(const RowSketch& other);

  // About how many different rows were inserted.
  int64_t Estimate() const;

 private:
  static constexpr int kIndexBits = 10;
  static constexpr int kNumRegisters = 1 << kIndexBits;

  // The longest run of leading zeros, plus one, that a row of each register
  // had.
  std::array<uint8_t, kNumRegisters> registers_ = {};
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROW_SKETCH_H_
