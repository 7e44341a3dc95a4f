#include "tf_syncrep/cc/lib/notice.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <iterator>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/detached_thread.h"

namespace tf_syncrep {
namespace {

using Clock = std::chrono::steady_clock;

// How long a process that has notice waits for what follows work, which is more
// of it.
constexpr std::chrono::seconds kGap(2);
// How long one piece of work may go on when there is notice.
constexpr std::chrono::seconds kMostWork(10);
// For how long after a SIGTERM another one is the same: `timeout`, some
// schedulers and whoever passes signals on send it to a process and to its
// group. It takes a while where all processes of a machine are to end.
constexpr Clock::duration kRepeated = std::chrono::seconds(5);

// What the handler uses; all else is out of its reach.
std::atomic<pid_t> owner{0};
std::atomic<Clock::rep> given_at{0};  // when a SIGTERM came; 0 if none did
std::atomic<pid_t> given_to{0};       // whom it came to: not to children
int pipe_ends[2] = {-1, -1};
struct sigaction former;  // written while the handler is not in force

void Wake() {
  const char byte = 0;
  // A full pipe wakes as well.
  static_cast<void>(!write(pipe_ends[1], &byte, 1));
}

void Handle(int signum);

bool IsInForce(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == Handle;
}

// Whoever has set another handler meanwhile keeps it.
void RestoreFormer() {
  struct sigaction present;
  sigaction(SIGTERM, nullptr, &present);
  if (IsInForce(present)) {
    sigaction(SIGTERM, &former, nullptr);
  }
}

// Does what a signal would have done, and will do from here on.
void ActAsBefore() {
  RestoreFormer();
  kill(getpid(), SIGTERM);
}

void Handle(int /*signum*/) {
  const int error = errno;
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep first = 0;
  const bool is_own = getpid() == owner.load();
  if (is_own) {
    given_to.store(getpid());
  }
  if (is_own && given_at.compare_exchange_strong(first, now)) {
    Wake();
  } else if (!is_own || now - first > kRepeated.count()) {
    ActAsBefore();
  }
  errno = error;
}

}  // namespace

Notice& Notice::OfProcess() {
  static auto* const notice = new Notice();  // its thread never ends
  return *notice;
}

Notice::WaitId Notice::Wait(bool until_end, Callback done) {
  {
    const MutexLock lock(mu_);
    if (Listen()) {
      const WaitId id = ++last_wait_;
      waits_.insert({id, {until_end, std::move(done)}});
      if (IsGiven()) {
        Wake();
      }
      return id;
    }
  }
  done(true);
  return 0;
}

void Notice::Cancel(WaitId id) {
  Callback done;
  {
    const MutexLock lock(mu_);
    const auto wait = waits_.find(id);
    if (wait == waits_.end()) {
      return;
    }
    done = std::move(wait->second.done);
    waits_.erase(wait);
    StopListeningIfIdle();
  }
  done(true);
}

void Notice::BeginWork() {
  const MutexLock lock(mu_);
  ++num_working_;
  work_began_ = Clock::now();
  Listen();
}

void Notice::EndWork() {
  const MutexLock lock(mu_);
  --num_working_;
  free_at_ = Clock::now() + kGap;
  StopListeningIfIdle();
}

void Notice::Begin() {
  const MutexLock lock(mu_);
  ++num_here_;
  Listen();
}

bool Notice::End() {
  const MutexLock lock(mu_);
  bool is_given = IsGiven();
  --num_here_;
  if (!IsBusy()) {
    is_given = given_at.exchange(0) != 0;  // its caller sees to it
  }
  StopListeningIfIdle();
  return is_given;
}

bool Notice::IsGiven() const { return given_at.load() != 0; }

bool Notice::WasGiven() const { return given_to.load() == getpid(); }

// Returns false where there is no thread.
bool Notice::Listen() {
  if (!has_thread_) {
    if (pipe_ends[0] < 0 && pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) {
      return false;
    }
    has_thread_ = StartDetachedThread("tfs_notice", [this] { Run(); });
    if (!has_thread_) {
      return false;
    }
  }
  if (!is_listening_) {
    struct sigaction present;
    sigaction(SIGTERM, nullptr, &present);
    const bool ignores =
        (present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == SIG_IGN;
    if (!ignores) {
      // Somebody may have put the own handler back, which he had replaced. A
      // signal that came as listening ended is still to be seen to.
      if (!IsInForce(present)) {
        former = present;
      }
      owner.store(getpid());
      struct sigaction own = {};
      own.sa_handler = Handle;
      own.sa_flags = SA_RESTART;
      sigemptyset(&own.sa_mask);
      sigaction(SIGTERM, &own, nullptr);
      is_listening_ = true;
    }
  }
  return true;
}

bool Notice::IsBusy() const {
  return num_here_ > 0 || num_working_ > 0 || !waits_.empty();
}

void Notice::StopListeningIfIdle() {
  if (IsGiven()) {
    Wake();  // the thread does what has been put off, if it is time
  } else if (is_listening_ && !IsBusy() && work_began_ == Time()) {
    // Where there was work, its next is a moment away.
    RestoreFormer();
    is_listening_ = false;
  }
}

void Notice::Run() {
  Time wake_at = Time::max();
  for (;;) {
    int wait_ms = -1;
    if (wake_at != Time::max()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          wake_at - Clock::now());
      wait_ms = left.count() < 0 ? 0 : static_cast<int>(left.count()) + 1;
    }
    pollfd readable = {pipe_ends[0], POLLIN, 0};
    poll(&readable, 1, wait_ms);
    char bytes[64];
    while (read(pipe_ends[0], bytes, sizeof bytes) > 0) {
    }
    const Time now = Clock::now();
    wake_at = Time::max();
    std::vector<Callback> calls;
    {
      const MutexLock lock(mu_);
      if (!IsGiven()) {
        continue;
      }
      for (auto wait = waits_.begin(); wait != waits_.end();) {
        const auto next = std::next(wait);
        if (!wait->second.until_end) {
          calls.push_back(std::move(wait->second.done));
          waits_.erase(wait);
        }
        wait = next;
      }
      if (num_here_ == 0 && waits_.empty()) {
        const Time given(Clock::duration(given_at.load()));
        wake_at = num_working_ > 0 ? std::max(given, work_began_) + kMostWork
                                   : free_at_;
      }
      if (now >= wake_at) {
        wake_at = Time::max();
        is_listening_ = false;
        given_at.store(0);
        // The lock is held: whoever listened before the former action is in
        // force again would take the own handler for it.
        ActAsBefore();
      }
    }
    for (const Callback& done : calls) {
      done(false);
    }
  }
}

}  // namespace tf_syncrep
