#include "tf_syncrep/cc/lib/rows/row_locks.h"

namespace tf_syncrep {

RowLocks& RowLocks::Global() {
  // The locks are never destroyed, since pool threads may outlive static
  // destruction.
  static RowLocks* const locks = new RowLocks;
  return *locks;
}

}  // namespace tf_syncrep
