#include "tf_syncrep/cc/lib/wire/hub.h"

#include <algorithm>
#include <utility>

namespace tf_syncrep {
namespace wire {

Hub::Hub(Hello self, Server* server, Network* network,
         std::function<Time()> now, Sayer say)
    : self_(std::move(self)),
      server_(server),
      network_(network),
      now_(std::move(now)),
      say_(std::move(say)) {}

void Hub::SetAddress(const std::string& task, const std::string& address) {
  MutexLock lock(mu_);
  Peer& peer = peers_[task];
  if (peer.address != address) {
    peer.address = address;
    peer.tried_until = {};
  }
}

Hub::ConnectionPtr Hub::Find(const std::string& task) {
  std::string address;
  {
    MutexLock lock(mu_);
    const auto found = peers_.find(task);
    if (found == peers_.end()) {
      return nullptr;
    }
    Peer& peer = found->second;
    if (peer.connection != nullptr || peer.is_dialling ||
        peer.address.empty() || now_() < peer.tried_until) {
      return peer.connection;
    }
    peer.is_dialling = true;
    address = peer.address;
  }
  Dial(task, address);
  return nullptr;
}

bool Hub::MayHaveWire(const std::string& task) {
  MutexLock lock(mu_);
  const auto found = peers_.find(task);
  if (found == peers_.end() || found->second.address.empty()) {
    return false;
  }
  return !found->second.has_no_wire || now_() >= found->second.tried_until;
}

void Hub::Await(const std::string& task, Found found) {
  std::string address;
  ConnectionPtr connection;
  {
    MutexLock lock(mu_);
    const auto known = peers_.find(task);
    if (known != peers_.end()) {
      Peer& peer = known->second;
      connection = peer.connection;
      if (connection == nullptr && !peer.address.empty()) {
        peer.awaited.emplace_back().swap(found);
        if (peer.is_dialling) {
          return;
        }
        peer.is_dialling = true;
        address = peer.address;
      }
    }
  }
  if (!address.empty()) {
    Dial(task, address);
  } else {
    const bool has_answered = connection != nullptr;
    found(std::move(connection), has_answered);
  }
}

void Hub::CancelSoon(ConnectionPtr connection, uint64_t id) {
  network_->Post(
      [connection = std::move(connection), id] { connection->Cancel(id); });
}

void Hub::StopSoon(ConnectionPtr connection, uint64_t id) {
  network_->Post([this, connection = std::move(connection), id] {
    if (connection->Stop(id)) {
      MutexLock lock(mu_);
      stopping_.push_back({connection, id, now_() + kStopPatience});
    }
  });
}

void Hub::Accept(std::unique_ptr<Stream> stream) {
  auto connection = std::make_shared<Connection>(
      std::move(stream), static_cast<Connection::Owner*>(this),
      /*dialled=*/false);
  Greet(connection, "");
}

void Hub::OnOver(const ConnectionPtr& connection) {
  std::string dialled;
  {
    MutexLock lock(mu_);
    const auto greeting = greetings_.find(connection);
    if (greeting != greetings_.end()) {
      dialled = greeting->second.task;
      greetings_.erase(greeting);
    }
    const auto peer = peers_.find(connection->peer().from);
    if (peer != peers_.end() && peer->second.connection == connection) {
      peer->second.connection = nullptr;
    }
  }
  if (!dialled.empty()) {
    const bool has_answered = connection->has_heard();
    EndDialling(
        dialled,
        has_answered ? "it does not speak this protocol" : "it does not answer",
        has_answered);
  }
  connection->End("the connection with " + connection->peer().from +
                  " is lost");
}

Hub::Time Hub::Poll() {
  std::vector<ConnectionPtr> late;
  std::vector<Stopping> stopped;
  Time next = Time::max();
  {
    MutexLock lock(mu_);
    const Time now = now_();
    for (const auto& [connection, greeting] : greetings_) {
      if (greeting.until <= now) {
        late.push_back(connection);
      } else {
        next = std::min(next, greeting.until);
      }
    }
    while (!stopping_.empty() && stopping_.front().until <= now) {
      stopped.push_back(std::move(stopping_.front()));
      stopping_.pop_front();
    }
    if (!stopping_.empty()) {
      next = std::min(next, stopping_.front().until);
    }
  }
  for (const Stopping& one : stopped) {
    one.connection->Cancel(one.id);
  }
  for (const ConnectionPtr& connection : late) {
    connection->Shutdown();
  }
  return next;
}

bool Hub::OnHello(const ConnectionPtr& connection, const Hello& hello) {
  std::string dialled;
  {
    MutexLock lock(mu_);
    const auto greeting = greetings_.find(connection);
    if (greeting == greetings_.end()) {
      return false;
    }
    dialled = greeting->second.task;
    greetings_.erase(greeting);
  }
  if (!connection->dialled()) {
    // Also to those with whom it does not go on: they say why, then.
    Hello own = self_;
    own.to = hello.from;
    connection->SendHello(own);
  }
  std::string reason;
  if (hello.version != self_.version) {
    reason =
        "it has version " + hello.version + ", and this task " + self_.version;
  } else if (hello.to != self_.from) {
    reason = "it looks for " + hello.to + ", and finds " + self_.from;
  } else if (!dialled.empty() && hello.from != dialled) {
    reason = "it is " + hello.from;
  }
  if (!reason.empty()) {
    if (!dialled.empty()) {
      EndDialling(dialled, reason, /*has_answered=*/true);
    } else {
      Say(hello.from, "no: " + reason);
    }
    return false;
  }

  ConnectionPtr former;
  {
    MutexLock lock(mu_);
    Peer& peer = peers_[hello.from];
    if (peer.connection == nullptr ||
        peer.connection->peer().incarnation != hello.incarnation) {
      former = std::exchange(peer.connection, connection);
    }
  }
  if (former != nullptr) {
    former->Shutdown();  // The process that it led to is gone.
  }
  EndDialling(hello.from, "", /*has_answered=*/true);
  return true;
}

void Hub::Dial(const std::string& task, const std::string& address) {
  network_->Dial(address, [this, task](std::unique_ptr<Stream> stream,
                                       const std::string& reason) {
    if (stream == nullptr) {
      EndDialling(task, reason, /*has_answered=*/false);
      return;
    }
    auto connection = std::make_shared<Connection>(
        std::move(stream), static_cast<Connection::Owner*>(this),
        /*dialled=*/true);
    Greet(connection, task);
    Hello own = self_;
    own.to = task;
    connection->SendHello(own);
  });
}

void Hub::Greet(const ConnectionPtr& connection, const std::string& dialled) {
  {
    MutexLock lock(mu_);
    greetings_[connection] = {dialled, now_() + kPatience};
  }
  if (!network_->Watch(connection)) {
    OnOver(connection);
  }
}

void Hub::EndDialling(const std::string& task, const std::string& reason,
                      bool has_answered) {
  ConnectionPtr connection;
  std::vector<Found> awaited;
  {
    MutexLock lock(mu_);
    Peer& peer = peers_[task];
    connection = peer.connection;
    peer.has_no_wire = connection == nullptr && has_answered;
    if (connection == nullptr) {
      peer.pause = std::clamp(2 * peer.pause, kFirstPause, kLastPause);
      peer.tried_until = now_() + peer.pause;
    } else {
      peer.pause = {};
      peer.tried_until = {};
    }
    // A connection that it dialled ends what waits; its own may still come.
    peer.is_dialling = false;
    awaited.swap(peer.awaited);
  }
  Say(task, connection != nullptr ? "yes" : "no: " + reason);
  for (const Found& found : awaited) {
    found(connection, has_answered);
  }
}

void Hub::Say(const std::string& task, const std::string& what) {
  {
    MutexLock lock(mu_);
    if (std::exchange(peers_[task].said, what) == what) {
      return;
    }
  }
  say_(task, what);
}

}  // namespace wire
}  // namespace tf_syncrep
