// Which hosts may connect to a process.

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

// Networks, and names of hosts. `Follow`, which a thread calls, looks up the
// addresses of names as long as the process lives, since tasks that are started
// again get other addresses.
class AllowList {
 public:
  // Returns the addresses of a name, or none if it has none at the moment.
  using LookUp = std::function<std::vector<Network>(const std::string&)>;
  using Sayer = std::function<void(const std::string&)>;

  // `text` has addresses, networks and names, separated by commas. `say` is
  // told of refused connections, at most once a minute, without a lock held.
  AllowList(const std::string& text, LookUp look_up, Sayer say);

  bool HasNames() const { return !names_.empty(); }

  // Whether `peer` may connect to this machine's address `own` and its `port`.
  // This machine itself always may. After a refusal the names are looked up
  // soon.
  bool Allows(const Network& peer, const Network& own, int port)
      TF_SYNCREP_EXCLUDES(mu_);

  // Looks up all names: at once, then each minute, and soon after a refusal,
  // since the peer may be a task at a new address. Never returns.
  [[noreturn]] void Follow() TF_SYNCREP_EXCLUDES(mu_);

  // One turn of `Follow`: looks up all names, tells of the last refused peer if
  // it would still be refused, and returns how long to pause if no other peer
  // comes (`calm`), and if one comes (`hurried`).
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

  void Say(const std::string& sentence) const TF_SYNCREP_EXCLUDES(mu_);
  bool Contains(const Network& peer) const TF_SYNCREP_REQUIRES(mu_);
  // Returns the sentence about the refused peer; empty if there was one not
  // long ago.
  std::string Tell() TF_SYNCREP_REQUIRES(mu_);

  const LookUp look_up_;
  const Sayer say_;
  std::vector<Network> networks_;   // constant
  std::vector<std::string> names_;  // constant

  // Guards the following fields. Nobody waits, and nothing is said, while it is
  // held.
  Mutex mu_;
  // Notified when a peer was refused, which shortens the thread's pause.
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
