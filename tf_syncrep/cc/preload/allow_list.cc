#include "tf_syncrep/cc/preload/allow_list.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <thread>
#include <utility>

namespace tf_syncrep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCalm{60};
// Names are looked up again when somebody was refused, or a name has no
// address: first after a second, and after twice as long whenever nothing has
// changed, ...
constexpr std::chrono::seconds kFirstPause{1};
constexpr std::chrono::seconds kLongestPause{15};  // ... up to this.
constexpr std::chrono::seconds kSilence{60};       // between two messages

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) {
      items.push_back(text.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return items;
}

}  // namespace

AllowList::AllowList(const std::string& text, LookUp look_up, Sayer say)
    : look_up_(std::move(look_up)),
      say_(std::move(say)),
      hurried_(kFirstPause) {
  for (const std::string& item : Split(text)) {
    if (const auto network = Network::Parse(item)) {
      networks_.push_back(*network);
    } else {
      names_.push_back(item);
    }
  }
}

bool AllowList::Allows(const Network& peer, const Network& own, int port) {
  // Packets from this machine to one of its own addresses come from that
  // address.
  if (peer.IsLoopback() || peer == own) {
    return true;
  }
  std::string sentence;
  {
    const MutexLock lock(mu_);
    if (Contains(peer)) {
      return true;
    }
    const int count = refused_.empty() ? 0 : refused_.front().count;
    refused_.assign(1, {peer, port, count + 1});
    if (HasNames()) {
      somebody_came_.notify_one();
    } else {
      sentence = Tell();
    }
  }
  Say(sentence);
  return false;
}

void AllowList::Follow() {
  while (true) {
    Pauses pauses;
    try {
      pauses = FollowOnce();
    } catch (const std::bad_alloc&) {
      // Nobody else would catch it, and the process would end.
      pauses = {kLongestPause, kFirstPause};
    }
    const auto begin = Clock::now();
    std::this_thread::sleep_for(pauses.hurried);
    const MutexLock lock(mu_);
    while (refused_.empty() &&
           somebody_came_.wait_until(mu_, begin + pauses.calm) ==
               std::cv_status::no_timeout) {
    }
  }
}

AllowList::Pauses AllowList::FollowOnce() {
  bool changed = false;
  bool complete = true;
  for (const std::string& name : names_) {
    std::vector<Network> found = look_up_(name);
    const MutexLock lock(mu_);
    std::vector<Network>& known = addresses_[name];
    // A name that has no address at the moment keeps its old ones.
    if (!found.empty() && found != known) {
      known = std::move(found);
      changed = true;
    }
    complete = complete && !known.empty();
  }
  std::string sentence;
  Pauses pauses;
  {
    const MutexLock lock(mu_);
    hurried_ = changed ? kFirstPause : std::min(2 * hurried_, kLongestPause);
    if (!refused_.empty()) {
      if (Contains(refused_.front().peer)) {
        refused_.clear();
      } else if (complete || hurried_ == kLongestPause) {
        // Otherwise the peer may be a host whose name has no address yet.
        sentence = Tell();
      }
    }
    pauses = {complete ? kCalm : hurried_, hurried_};
  }
  Say(sentence);
  return pauses;
}

bool AllowList::Contains(const Network& peer) const {
  const auto contains = [&peer](const std::vector<Network>& networks) {
    return std::any_of(
        networks.begin(), networks.end(),
        [&peer](const Network& network) { return network.Contains(peer); });
  };
  return contains(networks_) ||
         std::any_of(addresses_.begin(), addresses_.end(),
                     [&](const auto& entry) { return contains(entry.second); });
}

void AllowList::Say(const std::string& sentence) const {
  if (!sentence.empty()) {
    say_(sentence);
  }
}

std::string AllowList::Tell() {
  const auto now = Clock::now();
  std::string sentence;
  if (now >= silent_until_) {
    const Refused& last = refused_.front();
    sentence = "a connection from " + last.peer.ToString() + " to port " +
               std::to_string(last.port) +
               " was refused: --allow does not name that host";
    if (last.count > 1) {
      sentence += " (" + std::to_string(last.count) + " connections so far)";
    }
    for (const std::string& name : names_) {
      if (addresses_[name].empty()) {
        sentence += "; " + name + " has no address";
      }
    }
    silent_until_ = now + kSilence;
  }
  refused_.clear();
  return sentence;
}

}  // namespace tf_syncrep
