// Draws the initial vectors of rows, which are random and always the same.

#ifndef TF_SYNCREP_CC_LIB_TABLE_INITIAL_VALUES_H_
#define TF_SYNCREP_CC_LIB_TABLE_INITIAL_VALUES_H_

#include <cstdint>
#include <string_view>

#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {

enum class InitialKind : uint8_t {
  kConstant,         // first
  kUniform,          // from `first` to `second`
  kNormal,           // with mean `first` and standard deviation `second`
  kTruncatedNormal,  // the same, within two standard deviations
};

// Its numbers depend on seed, table, key and element alone: neither on when a
// key comes, nor on which part of a table has it. They are those of
// Philox-4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", 2011), whose key consists of the bits of
// HashKey(HashKey(seed) ^ FNV-1a(name)), and whose counter is the key, the pair
// of elements and the attempt. Each of the two elements of a pair gets 64 of
// the 128 bits, of which 53 make a uniform number from 0 to 1. The two numbers
// make a pair of normal ones by Box and Muller (1958). A normal number that
// would have to be truncated is drawn again at the next attempt. Everything is
// computed in double precision and rounded once.
class InitialValues {
 public:
  InitialValues(InitialKind kind, double first, double second, uint64_t seed,
                std::string_view table);

  template <typename T>
  void Draw(int64_t key, int64_t width, T* vector) const;

 private:
  // Draws a pair of elements at an attempt, which is 0 unless they are
  // truncated.
  void DrawPair(int64_t key, uint32_t pair, uint32_t attempt,
                double* values) const;

  InitialKind kind_;
  double first_;
  double second_;
  uint64_t stream_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_INITIAL_VALUES_H_
