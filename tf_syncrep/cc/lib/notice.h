// Notice: others learn that a process was asked to end, before it ends.

#ifndef TF_SYNCREP_CC_LIB_NOTICE_H_
#define TF_SYNCREP_CC_LIB_NOTICE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>

#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {

// A scheduler that takes a task away sends SIGTERM, and SIGKILL some time
// later. As long as somebody listens here, the first SIGTERM is noted and
// nothing else happens. What would have happened, by the action that was in
// force before, happens when nobody listens any more, or at a second SIGTERM
// that is no repetition of the first.
//
// Who listens is either in another process, and has a wait or work here, or in
// this one: then it is up to that one what happens in the end. As long as
// nobody listens, the process is as it would be without this class, and a child
// that it forks always is. If the action is to ignore SIGTERM, nothing is
// heard.
//
// All methods are thread-safe and none blocks. Callbacks are called exactly
// once, without a lock held.
class Notice {
 public:
  using WaitId = int64_t;
  using Callback = std::function<void(bool is_cancelled)>;

  // The only one: signals are the process's.
  static Notice& OfProcess();

  // Calls `done` when the process has notice, which may end right then; if
  // `until_end`, not before the wait is cancelled: the process does not end
  // meanwhile. Where there is no thread to wait with, the wait is cancelled at
  // once.
  WaitId Wait(bool until_end, Callback done);

  // Ends a wait, if it still waits.
  void Cancel(WaitId id);

  // Encloses work for another process, which a notice does not cut off, unless
  // it goes on for long. More of it may follow within a moment.
  void BeginWork();
  void EndWork();

  // Listens in this process until End() is called as often, which returns
  // whether there was a SIGTERM. If there was, IsGiven() stays true as long as
  // others listen: it is up to the last of them.
  void Begin();
  bool End();

  // Whether there was a SIGTERM since somebody listens.
  bool IsGiven() const;

  // Whether there ever was one that was heard here. So the process is to end,
  // or does, unless its own action was to go on.
  bool WasGiven() const;

 private:
  struct Waiting {
    bool until_end;
    Callback done;
  };

  Notice() = default;

  bool Listen() TF_SYNCREP_REQUIRES(mu_);
  void StopListeningIfIdle() TF_SYNCREP_REQUIRES(mu_);
  void Run();

  using Time = std::chrono::steady_clock::time_point;

  bool IsBusy() const TF_SYNCREP_REQUIRES(mu_);

  mutable Mutex mu_;
  bool has_thread_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  bool is_listening_ TF_SYNCREP_GUARDED_BY(mu_) = false;
  // Work that follows what was done until now has begun by then.
  Time free_at_ TF_SYNCREP_GUARDED_BY(mu_);
  Time work_began_
      TF_SYNCREP_GUARDED_BY(mu_);  // the last one; 0 if there was none
  int num_working_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  int num_here_ TF_SYNCREP_GUARDED_BY(mu_) = 0;  // Begin() without End()
  WaitId last_wait_ TF_SYNCREP_GUARDED_BY(mu_) = 0;
  std::map<WaitId, Waiting> waits_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_NOTICE_H_
