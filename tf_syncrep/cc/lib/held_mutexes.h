// HeldMutexes: several mutexes of one kind, held at a time.

#ifndef TF_SYNCREP_CC_LIB_HELD_MUTEXES_H_
#define TF_SYNCREP_CC_LIB_HELD_MUTEXES_H_

#include <algorithm>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// Holds up to kMost mutexes during its lifetime. It waits for the first one
// alone: whoever holds one of the others could be waiting for one that is held
// here.
template <int kMost>
class HeldMutexes {
 public:
  HeldMutexes() = default;
  ~HeldMutexes() TF_SYNCREP_UNCHECKED_LOCKS {
    for (int i = 0; i < size_; ++i) {
      held_[i]->unlock();
    }
  }
  HeldMutexes(const HeldMutexes&) = delete;
  HeldMutexes& operator=(const HeldMutexes&) = delete;

  bool Has(const Mutex& mu) const {
    return std::find(held_, held_ + size_, &mu) != held_ + size_;
  }

  // Locks a mutex that is not held here, and returns whether it did.
  bool Add(Mutex& mu) TF_SYNCREP_UNCHECKED_LOCKS {
    if (size_ == 0) {
      mu.lock();
    } else if (size_ == kMost || !mu.try_lock()) {
      return false;
    }
    held_[size_++] = &mu;
    return true;
  }

 private:
  Mutex* held_[kMost];
  int size_ = 0;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_HELD_MUTEXES_H_
