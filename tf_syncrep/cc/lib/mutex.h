// A mutex whose rules Clang checks (-Wthread-safety).

#ifndef TF_SYNCREP_CC_LIB_MUTEX_H_
#define TF_SYNCREP_CC_LIB_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TF_SYNCREP_ATTRIBUTE(x) __attribute__((x))
#else
#define TF_SYNCREP_ATTRIBUTE(x)
#endif

// For a field: the mutex that must be held to use it.
#define TF_SYNCREP_GUARDED_BY(mu) TF_SYNCREP_ATTRIBUTE(guarded_by(mu))
// For a function: the mutex that its caller must hold, or must not hold.
#define TF_SYNCREP_REQUIRES(mu) TF_SYNCREP_ATTRIBUTE(requires_capability(mu))
#define TF_SYNCREP_EXCLUDES(mu) TF_SYNCREP_ATTRIBUTE(locks_excluded(mu))
// For a function that takes mutexes which are known only when it runs.
#define TF_SYNCREP_UNCHECKED_LOCKS \
  TF_SYNCREP_ATTRIBUTE(no_thread_safety_analysis)

namespace tf_syncrep {

// A std::mutex with annotations, which the standard library's does not have.
class TF_SYNCREP_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() TF_SYNCREP_ATTRIBUTE(acquire_capability()) { mu_.lock(); }
  // Returns whether the mutex is locked now; the caller must not hold it.
  bool try_lock() TF_SYNCREP_ATTRIBUTE(try_acquire_capability(true)) {
    return mu_.try_lock();
  }
  void unlock() TF_SYNCREP_ATTRIBUTE(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;

  std::mutex mu_;
};

// Holds a mutex during its lifetime, except between Unlock() and Lock().
class TF_SYNCREP_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) TF_SYNCREP_ATTRIBUTE(acquire_capability(mu))
      : mu_(mu) {
    mu_.lock();
  }
  ~MutexLock() TF_SYNCREP_ATTRIBUTE(release_capability()) {
    if (is_held_) {
      mu_.unlock();
    }
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() TF_SYNCREP_ATTRIBUTE(release_capability()) {
    is_held_ = false;
    mu_.unlock();
  }
  void Lock() TF_SYNCREP_ATTRIBUTE(acquire_capability()) {
    mu_.lock();
    is_held_ = true;
  }

 private:
  Mutex& mu_;
  bool is_held_ = true;
};

// A std::condition_variable for Mutex. Waits release the mutex meanwhile, and
// may end without a reason: call them in a loop that checks the condition.
class CondVar {
 public:
  void Wait(Mutex& mu) TF_SYNCREP_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }

  // Also ends at `time`, of the steady clock. Returns whether that time is
  // past.
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point time)
      TF_SYNCREP_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool is_past =
        changed_.wait_until(lock, time) == std::cv_status::timeout;
    lock.release();
    return is_past;
  }

  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_MUTEX_H_
