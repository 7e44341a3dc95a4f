// Who may connect to a process.

#ifndef TF_SYNCREP_CC_PRELOAD_ALLOW_LIST_H_
#define TF_SYNCREP_CC_PRELOAD_ALLOW_LIST_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/preload/network.h"

namespace tf_syncrep {

// Networks, and hosts by their names. The addresses of names are looked up by
// `Follow`, which a thread calls as long as the process lives: tasks that are
// started again get other addresses.
class AllowList {
 public:
  // The addresses that a name has; none if it has none at the moment.
  using LookUp = std::function<std::vector<Network>(const std::string&)>;
  using Sayer = std::function<void(const std::string&)>;

  // Of `text`: addresses, networks and names, separated by commas. What is
  // refused is told by `say`, a sentence a minute at most, without a lock held.
  AllowList(const std::string& text, LookUp look_up, Sayer say);

  // Whether `Follow` has something to do.
  bool HasNames() const { return !names_.empty(); }

  // Whether `peer` may connect to this machine's address `own` and its `port`.
  // This machine may at any time. If not, the names are looked up soon.
  bool Allows(const Network& peer, const Network& own, int port)
      TF_SYNCREP_EXCLUDES(mu_);

  // Looks up all names: at once, each minute, and soon after somebody was
  // refused, who may be a task at a new address. Never returns.
  [[noreturn]] void Follow() TF_SYNCREP_EXCLUDES(mu_);

  // What `Follow` does: looks up all names, tells of the last who was refused
  // if that one still is, and returns when to do so again if nobody comes
  // (`calm`) and if somebody does (`hurried`).
  struct Pauses {
    std::chrono::seconds calm;
    std::chrono::seconds hurried;
  };
  Pauses FollowOnce() TF_SYNCREP_EXCLUDES(mu_);

 private:
  struct Refused {
    Network peer;
    int port;
    int count;
  };

  // Says it, if it is not empty.
  void Say(const std::string& sentence) const TF_SYNCREP_EXCLUDES(mu_);
  bool Contains(const Network& peer) const TF_SYNCREP_REQUIRES(mu_);
  // The sentence about who was refused; empty if one was told not long ago.
  std::string Tell() TF_SYNCREP_REQUIRES(mu_);

  const LookUp look_up_;
  const Sayer say_;
  std::vector<Network> networks_;   // set once
  std::vector<std::string> names_;  // set once

  // Guards what follows. Nobody waits under it, and nothing is said.
  Mutex mu_;
  // Somebody was refused: ends the thread's pause. Else the pause's end does.
  std::condition_variable_any somebody_came_;
  std::map<std::string, std::vector<Network>> addresses_
      TF_SYNCREP_GUARDED_BY(mu_);
  std::vector<Refused> refused_ TF_SYNCREP_GUARDED_BY(mu_);  // one at most
  std::chrono::steady_clock::time_point silent_until_
      TF_SYNCREP_GUARDED_BY(mu_);
  std::chrono::seconds hurried_ TF_SYNCREP_GUARDED_BY(mu_);
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_PRELOAD_ALLOW_LIST_H_
