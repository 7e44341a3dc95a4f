// A mutex whose rules Clang checks (-Wthread-safety).

#ifndef TF_SYNCREP_CC_LIB_MUTEX_H_
#define TF_SYNCREP_CC_LIB_MUTEX_H_

#include <mutex>

#if defined(__clang__)
#define TF_SYNCREP_ATTRIBUTE(x) __attribute__((x))
#else
#define TF_SYNCREP_ATTRIBUTE(x)
#endif

// Of a field: what must be held to use it.
#define TF_SYNCREP_GUARDED_BY(mu) TF_SYNCREP_ATTRIBUTE(guarded_by(mu))
// Of a function: what its caller must hold, and what it must not hold.
#define TF_SYNCREP_REQUIRES(mu) TF_SYNCREP_ATTRIBUTE(requires_capability(mu))
#define TF_SYNCREP_EXCLUDES(mu) TF_SYNCREP_ATTRIBUTE(locks_excluded(mu))

namespace tf_syncrep {

// std::mutex, which the standard library does not annotate.
class TF_SYNCREP_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() TF_SYNCREP_ATTRIBUTE(acquire_capability()) { mu_.lock(); }
  void unlock() TF_SYNCREP_ATTRIBUTE(release_capability()) { mu_.unlock(); }

 private:
  std::mutex mu_;
};

// Holds a mutex as long as it lives.
class TF_SYNCREP_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) TF_SYNCREP_ATTRIBUTE(acquire_capability(mu))
      : mu_(mu) {
    mu_.lock();
  }
  ~MutexLock() TF_SYNCREP_ATTRIBUTE(release_capability()) { mu_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_MUTEX_H_
