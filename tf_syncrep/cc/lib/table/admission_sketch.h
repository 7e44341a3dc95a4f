// AdmissionSketch: counts about how often keys without a row were seen.

#ifndef TF_SYNCREP_CC_LIB_TABLE_ADMISSION_SKETCH_H_
#define TF_SYNCREP_CC_LIB_TABLE_ADMISSION_SKETCH_H_

#include <algorithm>
#include <cstdint>

#include "tf_syncrep/cc/lib/owned_buffer.h"
#include "tf_syncrep/cc/lib/zero_pages.h"

namespace tf_syncrep {

// A count-min sketch (Cormode and Muthukrishnan, 2005) with conservative
// update: a key has four counters of a byte each, in one cache line, and was
// seen at most as often as the smallest of them says. So a key may be admitted
// too early, with a small probability. Counters are halved from time to time,
// as in TinyLFU (Einziger, Friedman and Manes, 2017), so that keys that are
// seen rarely age: line by line, so that no call takes long. The higher the
// count at which a key is admitted, the longer it takes until they are halved.
// So a key that comes at least six times among as many as there are counters,
// again and again, is admitted, whatever the count.
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
    halves_every_ = kLine * min_count / 8;
    num_counted_ = -num_lines_ * halves_every_;
  }

  // Counts a key by its hash, of which it takes bits 10 to 41. Sets `count` to
  // how often it was seen, this time included. If there is no memory, it
  // changes nothing and returns false.
  [[nodiscard]] bool Add(uint64_t hash, int* count) {
    if (counters_.owner == nullptr) {
      counters_ = ZeroPages(num_lines_ * kLine);
      if (counters_.owner == nullptr) {
        return false;
      }
    }
    // The hash is multiplied once more, since its bits also choose the key's
    // bucket.
    const uint64_t mixed = (hash >> 10 & 0xffffffffu) * 0x9e3779b97f4a7c15u;
    uint8_t* const line =
        Line(static_cast<int64_t>(mixed >> 32) & (num_lines_ - 1));
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
    if (++num_counted_ >= halves_every_) {
      num_counted_ = 0;
      uint8_t* const next = Line(next_halved_++ & (num_lines_ - 1));
      for (int i = 0; i < kLine; ++i) {
        next[i] /= 2;
      }
    }
    return true;
  }

  int64_t bytes() const {
    return counters_.owner == nullptr ? 0 : num_lines_ * kLine;
  }

 private:
  static constexpr int kDepth = 4;
  static constexpr int64_t kLine = 64;

  uint8_t* Line(int64_t number) const {
    return static_cast<uint8_t*>(counters_.data) + number * kLine;
  }

  int64_t num_lines_ = 1;  // a power of two
  int64_t halves_every_;   // so many keys that are counted it halves a line
  OwnedBuffer counters_;
  // Since a line was halved. It is negative until as many keys were counted as
  // are counted from one halving of a line to its next.
  int64_t num_counted_;
  int64_t next_halved_ = 0;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_ADMISSION_SKETCH_H_
