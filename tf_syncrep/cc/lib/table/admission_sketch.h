// AdmissionSketch: counts about how often keys without a row were seen.

#ifndef TF_SYNCREP_CC_LIB_TABLE_ADMISSION_SKETCH_H_
#define TF_SYNCREP_CC_LIB_TABLE_ADMISSION_SKETCH_H_

#include <algorithm>
#include <cstdint>

#include "tf_syncrep/cc/lib/array.h"

namespace tf_syncrep {

// A count-min sketch (Cormode and Muthukrishnan, 2005) with conservative
// update: a key has four counters of a byte each, in one cache line, and was
// seen at most as often as the smallest of them says. So a key may be admitted
// too early, with a small probability. All counters are halved from time to
// time, as in TinyLFU (Einziger, Friedman and Manes, 2017), so that keys that
// are seen rarely age. The higher the count at which a key is admitted, the
// longer it takes until they are halved. So a key that comes at least six times
// among as many as there are counters, again and again, is admitted, whatever
// the count.
//
// It is not thread-safe.
class AdmissionSketch {
 public:
  static constexpr int kMostCount = 255;

  // Makes a sketch of at least `num_counters` counters for keys that are
  // admitted at `min_count`. Their memory is allocated when the first key is
  // counted.
  AdmissionSketch(int64_t num_counters, int min_count) {
    while (num_lines_ * kLine < num_counters) {
      num_lines_ *= 2;
    }
    halved_after_ = num_lines_ * kLine * min_count / 8;
  }

  // Counts a key by its hash, of which it takes bits 10 to 41. Sets `count` to
  // how often it was seen, this time included. If there is no memory, it
  // changes nothing and returns false.
  [[nodiscard]] bool Add(uint64_t hash, int* count) {
    if (counters_.size() == 0) {
      if (!counters_.Allocate(num_lines_ * kLine)) {
        return false;
      }
      std::fill(counters_.begin(), counters_.end(), 0);
    }
    // The hash is multiplied once more, since its bits also choose the key's
    // bucket.
    const uint64_t mixed = (hash >> 10 & 0xffffffffu) * 0x9e3779b97f4a7c15u;
    uint8_t* const line =
        counters_.data() +
        (static_cast<int64_t>(mixed >> 32) & (num_lines_ - 1)) * kLine;
    uint8_t* counters[kDepth];
    int least = kMostCount;
    for (int i = 0; i < kDepth; ++i) {
      counters[i] = line + i * kLine / kDepth + (mixed >> (16 + 4 * i) & 15);
      least = std::min<int>(least, *counters[i]);
    }
    *count = std::min(least + 1, kMostCount);
    for (uint8_t* const counter : counters) {
      *counter = static_cast<uint8_t>(std::max<int>(*counter, *count));
    }
    if (++num_counted_ >= halved_after_) {
      num_counted_ = 0;
      for (uint8_t& counter : counters_) {
        counter /= 2;
      }
    }
    return true;
  }

  int64_t bytes() const { return counters_.size(); }

 private:
  static constexpr int kDepth = 4;
  static constexpr int64_t kLine = 64;

  int64_t num_lines_ = 1;  // a power of two
  int64_t halved_after_;
  Array<uint8_t> counters_;
  int64_t num_counted_ = 0;  // since the counters were halved
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_ADMISSION_SKETCH_H_
