// The columns of a table that grows: what it keeps of each row beside its
// vector.

#ifndef TF_SYNCREP_CC_LIB_TABLE_TABLE_COLUMNS_H_
#define TF_SYNCREP_CC_LIB_TABLE_TABLE_COLUMNS_H_

#include <cstdint>

namespace tf_syncrep {

// The count of a row that is in use is positive. A row is free if both numbers
// are zero. A row that was evicted rests, without a key, until its slots are
// cleared.
struct RowUse {
  int32_t last_use;
  int32_t count;

  static constexpr int32_t kRests = -1;  // a last use, if the count is 0

  bool is_in_use() const { return count != 0; }
  bool rests() const { return count == 0 && last_use == kRests; }
};
static_assert(sizeof(RowUse) == sizeof(uint64_t), "both are written at once");

// The columns of a part, in which each table has rows of its own. This class
// does not own them. A key is written as a whole, and so is a use: a reader
// without a lock may see the old one, but never a mixture. Who sees a use also
// sees what was written before it.
class TableColumns {
 public:
  // Both arrays must be aligned to eight bytes.
  TableColumns(int64_t* keys, void* uses)
      : keys_(keys), uses_(static_cast<uint64_t*>(uses)) {}

  const int64_t* keys() const { return keys_; }
  const void* address_of_use(int64_t row) const { return uses_ + row; }

  int64_t key(int64_t row) const {
    return __atomic_load_n(&keys_[row], __ATOMIC_RELAXED);
  }
  void set_key(int64_t row, int64_t key) const {
    __atomic_store_n(&keys_[row], key, __ATOMIC_RELAXED);
  }

  RowUse use(int64_t row) const {
    const uint64_t bits = __atomic_load_n(&uses_[row], __ATOMIC_ACQUIRE);
    RowUse use;
    __builtin_memcpy(&use, &bits, sizeof(use));
    return use;
  }
  void set_use(int64_t row, RowUse use) const {
    __atomic_store_n(&uses_[row], Bits(use), __ATOMIC_RELEASE);
  }
  // Sets the last use, unless the use has changed since `use` was read.
  void set_last_use(int64_t row, RowUse use, int32_t last_use) const {
    uint64_t expected = Bits(use);
    __atomic_compare_exchange_n(&uses_[row], &expected,
                                Bits({last_use, use.count}), /*weak=*/false,
                                __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }

 private:
  static uint64_t Bits(RowUse use) {
    uint64_t bits;
    __builtin_memcpy(&bits, &use, sizeof(bits));
    return bits;
  }

  int64_t* keys_;
  uint64_t* uses_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_TABLE_TABLE_COLUMNS_H_
