// The order of items in an epoch.

#ifndef TF_SYNCREP_CC_LIB_ITEM_ORDER_H_
#define TF_SYNCREP_CC_LIB_ITEM_ORDER_H_

#include <cstdint>

namespace tf_syncrep {

// A permutation of the numbers below `size`, another one for each seed and
// epoch, that takes no memory: a Feistel network over as many bits as `size`
// needs, applied again where it leads beyond (Black and Rogaway, "Ciphers with
// Arbitrary Finite Domains", 2002). No cipher: it shuffles, and hides nothing.
class ItemOrder {
 public:
  // `size` is positive.
  ItemOrder(int64_t size, uint64_t seed, int64_t epoch);

  // Which of the items is at `position`, below `size`.
  int64_t At(int64_t position) const;

 private:
  static constexpr int kRounds = 6;

  uint64_t size_;
  int half_bits_ = 1;
  uint64_t keys_[kRounds];
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ITEM_ORDER_H_
