// Restricts which hosts can connect to a process. It is made for LD_PRELOAD: it
// intercepts all calls of the C library's `listen` and `accept`.
//
// The environment variable TF_SYNCREP_ALLOW has the addresses, networks and
// names of the hosts that may connect, separated by commas; this machine always
// may. A connection from elsewhere is reset when it is accepted, before any
// byte of it is read. This needs no privilege, whereas a filter of a TCP socket
// (SO_ATTACH_FILTER) does on new kernels. It also lets in what this machine
// sends to one of its own addresses, which a socket of the loopback device
// (SO_BINDTODEVICE) does not.
//
// A program may also have taken from its sockets the connections that begin
// with the first bytes of tf_syncrep's own protocol: see tf_syncrep_set_taker.
//
// System calls that a program makes without the C library are not intercepted.

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "tf_syncrep/cc/lib/detached_thread.h"
#include "tf_syncrep/cc/lib/wire/frame.h"
#include "tf_syncrep/cc/preload/allow_list.h"
#include "tf_syncrep/cc/preload/network.h"

namespace tf_syncrep {
namespace {

constexpr char kVariable[] = "TF_SYNCREP_ALLOW";

using Listen = int (*)(int, int);
using Accept4 = int (*)(int, sockaddr*, socklen_t*, int);

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

std::vector<Network> AddressesOf(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<Network> networks;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) {
    return networks;
  }
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (const auto network = Network::Of(info->ai_addr)) {
      networks.push_back(*network);
    }
  }
  freeaddrinfo(found);
  // Name servers return addresses in any order.
  std::sort(networks.begin(), networks.end(),
            [](const Network& a, const Network& b) {
              return a.ToString() < b.ToString();
            });
  return networks;
}

// Writes a line to standard error, by one system call. If standard error is a
// full pipe, which nobody reads, nothing is written: otherwise the thread that
// accepts connections would wait for a reader.
void Say(const std::string& sentence) {
  const std::string line = "tf_syncrep: " + sentence + "\n";
  pollfd error = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&error, 1, /*timeout=*/0) != 1 || error.revents != POLLOUT) {
    return;
  }
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

// Starts a thread that follows the names; it ends with the process.
void Follow(AllowList* list) {
  // Signals are left to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool has_thread =
      StartDetachedThread("tfs_allow", [list] { list->Follow(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!has_thread) {
    Say("hosts are not let in, because there is no thread to look up their "
        "names");
  }
}

// The list of this process, which is made when it is first needed.
AllowList& List() {
  static std::atomic<AllowList*> instance{nullptr};
  // After a fork without `exec` a child process has no such thread, and perhaps
  // a lock that nobody releases. So it makes a list of its own.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { instance.store(nullptr); });
  AllowList* list = instance.load();
  if (list == nullptr) {
    // The variable was set before the program began, and the program does not
    // change it.
    const char* text = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe)
    // The list is never destroyed, since its thread may outlive main().
    auto* made = new AllowList(text == nullptr ? "" : text, AddressesOf, Say);
    if (!instance.compare_exchange_strong(list, made)) {
      delete made;  // another thread was faster
      return *list;
    }
    if (made->HasNames()) {
      Follow(made);
    }
    return *made;
  }
  return *list;
}

bool MayStay(int connection, const sockaddr_storage& peer_address) {
  const auto peer =
      Network::Of(reinterpret_cast<const sockaddr*>(&peer_address));
  if (!peer) {
    return true;
  }
  sockaddr_storage own_address{};
  socklen_t size = sizeof own_address;
  if (getsockname(connection, reinterpret_cast<sockaddr*>(&own_address),
                  &size) != 0) {
    return false;
  }
  const auto own = Network::Of(reinterpret_cast<const sockaddr*>(&own_address));
  const in_port_t port =
      own_address.ss_family == AF_INET
          ? reinterpret_cast<const sockaddr_in*>(&own_address)->sin_port
          : reinterpret_cast<const sockaddr_in6*>(&own_address)->sin6_port;
  return own && List().Allows(*peer, *own, ntohs(port));
}

void Reset(int connection) {
  const linger at_once{1, 0};
  setsockopt(connection, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(connection);
}

// Takes a connection, or returns false if it is nobody's.
using Taker = bool (*)(int connection);
std::atomic<Taker> taker{nullptr};
// How long a connection may say nothing before it is accepted. Both protocols
// begin with bytes of whoever connects.
constexpr int kSilenceSecs = 1;

// Whether somebody has taken this connection, which begins as those of
// tf_syncrep's own protocol do. HTTP/2 begins with another letter.
bool IsTaken(int connection) {
  const Taker take = taker.load();
  char first = 0;
  return take != nullptr &&
         recv(connection, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
         first == wire::kPreface[0] && take(connection);
}

// Whether a program that has polled this socket takes it that `accept` does not
// wait, although it can.
bool IsPromised(int socket) {
  pollfd waiting = {socket, POLLIN, 0};
  return (fcntl(socket, F_GETFL) & O_NONBLOCK) == 0 &&
         poll(&waiting, 1, /*timeout=*/0) != 0;
}

// The same as the C library's accept4, except that connections from elsewhere
// are never seen. A program that polls before it accepts would hang if the
// connection that it was promised is such a one and this waited for the next:
// it gets the error that POSIX has for a connection that is gone.
int AcceptAllowed(int socket, sockaddr* address, socklen_t* size, int flags) {
  static const auto accept = Next<Accept4>("accept4");
  const bool was_promised = IsPromised(socket);
  while (true) {
    sockaddr_storage peer{};
    socklen_t peer_size = sizeof peer;
    const int connection =
        accept(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size, flags);
    if (connection < 0) {
      return connection;
    }
    try {
      if (MayStay(connection, peer)) {
        if (IsTaken(connection)) {
          if (was_promised && !IsPromised(socket)) {
            errno = ECONNABORTED;
            return -1;
          }
          continue;
        }
        if (address != nullptr && size != nullptr) {
          std::memcpy(address, &peer, std::min(*size, peer_size));
          *size = peer_size;
        }
        return connection;
      }
    } catch (const std::bad_alloc&) {
      Reset(connection);
      errno = ENOMEM;
      return -1;
    }
    Reset(connection);
    if (was_promised && !IsPromised(socket)) {
      errno = ECONNABORTED;
      return -1;
    }
  }
}

}  // namespace
}  // namespace tf_syncrep

extern "C" {

// The C library's header has other names for its parameters.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
__attribute__((visibility("default"))) int listen(int socket,
                                                  int backlog) noexcept {
  static const auto next = tf_syncrep::Next<tf_syncrep::Listen>("listen");
  try {
    tf_syncrep::List();  // starts to look up names
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return -1;
  }
  if (tf_syncrep::taker.load() != nullptr) {
    // So that there are first bytes to look at when a connection is accepted.
    setsockopt(socket, IPPROTO_TCP, TCP_DEFER_ACCEPT, &tf_syncrep::kSilenceSecs,
               sizeof tf_syncrep::kSilenceSecs);
  }
  return next(socket, backlog);
}

__attribute__((visibility("default"))) int accept4(int socket,
                                                   sockaddr* address,
                                                   socklen_t* size, int flags) {
  return tf_syncrep::AcceptAllowed(socket, address, size, flags);
}

__attribute__((visibility("default"))) int accept(int socket, sockaddr* address,
                                                  socklen_t* size) {
  return tf_syncrep::AcceptAllowed(socket, address, size, 0);
}

// NOLINTEND(readability-inconsistent-declaration-parameter-name)

// Tells, by its name, that a process has loaded this library: see dlsym.
__attribute__((visibility("default"))) int tf_syncrep_allow() noexcept {
  return 1;
}

// From now on connections that begin with the preface of the wire are `take`n
// when they are accepted, and the program does not see them.
__attribute__((visibility("default"))) void tf_syncrep_set_taker(
    bool (*take)(int connection)) noexcept {
  tf_syncrep::taker.store(take);
}

}  // extern "C"
