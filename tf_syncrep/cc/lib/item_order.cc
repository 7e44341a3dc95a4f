#include "tf_syncrep/cc/lib/item_order.h"

#include "tf_syncrep/cc/lib/rows/row_hash.h"

namespace tf_syncrep {
namespace {

uint64_t Mix(uint64_t value) { return HashRow(static_cast<int64_t>(value)); }

}  // namespace

ItemOrder::ItemOrder(int64_t size, uint64_t seed, int64_t epoch)
    : size_(static_cast<uint64_t>(size)) {
  while (2 * half_bits_ < 64 && (size_ - 1) >> (2 * half_bits_) != 0) {
    ++half_bits_;
  }
  uint64_t key = Mix(Mix(seed) + static_cast<uint64_t>(epoch));
  for (uint64_t& round_key : keys_) {
    key = Mix(key);
    round_key = key;
  }
}

int64_t ItemOrder::At(int64_t position) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(position);
  // The domain has less than four times `size` numbers, and the network
  // permutes it: so applying it again leads back below `size`, and mostly at
  // once.
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (Mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace tf_syncrep
