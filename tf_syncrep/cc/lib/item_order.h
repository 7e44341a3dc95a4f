// The order of items in an epoch.

#ifndef TF_SYNCREP_CC_LIB_ITEM_ORDER_H_
#define TF_SYNCREP_CC_LIB_ITEM_ORDER_H_

#include <cstdint>

namespace tf_syncrep {

// A permutation of the numbers below `size`, different for each seed and epoch,
// that takes no memory: a Feistel network over as many bits as `size` needs,
// which is applied again while the result is too large (Black and Rogaway,
// "Ciphers with Arbitrary Finite Domains", 2002). It is no cipher: it shuffles,
// and hides nothing.
class ItemOrder {
 public:
  // `size` is positive.
  ItemOrder(int64_t size, uint64_t seed, int64_t epoch);

  // The item at `position`, which is below `size`.
  int64_t At(int64_t position) const;

 private:
  static constexpr int kRounds = 6;

  uint64_t size_;
  int half_bits_ = 1;
  uint64_t keys_[kRounds];
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ITEM_ORDER_H_
