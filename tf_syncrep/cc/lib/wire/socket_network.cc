#include "tf_syncrep/cc/lib/wire/socket_network.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/detached_thread.h"

namespace tf_syncrep {
namespace wire {
namespace {

// A host that is silent for so long is gone. It is longer than what a process
// may be stopped for, to be moved to another machine, say: its kernel answers
// still, but takes no more bytes when its buffers are full. Where nothing is
// under way, probes ask for an answer, and have the same time.
constexpr int kSilenceSecs = 600;
constexpr int kSecsBeforeProbes = 60;
constexpr int kSecsBetweenProbes = 10;

using Dialled = Hub::Network::Dialled;

void Set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

std::string TextOf(int error) {
  std::array<char, 128> text{};
  return strerror_r(error, text.data(), text.size());
}

// Connects a socket, and waits for that as long as the hub is patient. Returns
// an error's number, or zero.
int Connect(int socket, const addrinfo& to) {
  if (connect(socket, to.ai_addr, to.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  pollfd connecting = {socket, POLLOUT, 0};
  const auto patience =
      std::chrono::duration_cast<std::chrono::milliseconds>(Hub::kPatience);
  int is_ready;
  do {
    is_ready = poll(&connecting, 1, static_cast<int>(patience.count()));
  } while (is_ready < 0 && errno == EINTR);
  if (is_ready != 1) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

void DialNow(const std::string& address, const Dialled& dialled) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    dialled(nullptr, "no port in " + address);
    return;
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (failed != 0) {
    dialled(nullptr, host + ": " + gai_strerror(failed));
    return;
  }
  int error = 0;
  std::unique_ptr<SocketStream> stream;
  for (const addrinfo* to = found; to != nullptr && stream == nullptr;
       to = to->ai_next) {
    const int made =
        socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0) {
      error = errno;
      continue;
    }
    error = Connect(made, *to);
    if (error == 0) {
      stream = std::make_unique<SocketStream>(made);
    } else {
      close(made);
    }
  }
  freeaddrinfo(found);
  const bool is_connected = stream != nullptr;
  dialled(std::move(stream), is_connected ? "" : TextOf(error));
}

}  // namespace

SocketStream::SocketStream(int socket) : socket_(socket) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * kSilenceSecs);
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kSecsBeforeProbes);
  Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kSecsBetweenProbes);
}

SocketStream::~SocketStream() { close(socket_); }

ssize_t SocketStream::Read(const iovec* parts, int num_parts) {
  while (true) {
    const ssize_t read = readv(socket_, parts, num_parts);
    if (read > 0) {
      return read;
    }
    if (read < 0 && errno == EINTR) {
      continue;
    }
    return read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? kNotNow
                                                                 : kOver;
  }
}

ssize_t SocketStream::Write(const iovec* parts, int num_parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = num_parts;
  while (true) {
    const ssize_t written = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (written > 0) {
      return written;
    }
    if (written < 0 && errno == EINTR) {
      continue;
    }
    return written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? kNotNow
                                                                    : kOver;
  }
}

void SocketStream::Shutdown() { shutdown(socket_, SHUT_RDWR); }

SocketNetwork* SocketNetwork::Make() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll < 0 || bell < 0 ||
      epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &event) != 0) {
    close(epoll);
    close(bell);
    return nullptr;
  }
  return new SocketNetwork(epoll, bell);
}

bool SocketNetwork::Start(Hub* hub) {
  return StartDetachedThread("tfs_wire", [this, hub] { Run(hub); });
}

void SocketNetwork::Dial(const std::string& address, Dialled dialled) {
  // Kept by both, since the thread that does not start has taken its copy.
  const auto kept = std::make_shared<Dialled>(std::move(dialled));
  if (!StartDetachedThread("tfs_wire_dial",
                           [address, kept] { DialNow(address, *kept); })) {
    (*kept)(nullptr, "there is no thread to dial");
  }
}

bool SocketNetwork::Watch(const Hub::ConnectionPtr& connection) {
  {
    MutexLock lock(mu_);
    watched_[connection.get()] = connection;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = connection.get();
  const auto* stream = static_cast<SocketStream*>(connection->stream());
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, stream->socket(), &event) != 0) {
    MutexLock lock(mu_);
    watched_.erase(connection.get());
    return false;
  }
  // It has a time by which it must have said hello.
  eventfd_write(bell_, 1);
  return true;
}

void SocketNetwork::WantsToWrite(Connection* connection, bool wants) {
  epoll_event event{};
  event.events = EPOLLIN | (wants ? EPOLLOUT : 0U);
  event.data.ptr = connection;
  const auto* stream = static_cast<SocketStream*>(connection->stream());
  epoll_ctl(epoll_, EPOLL_CTL_MOD, stream->socket(), &event);
}

void SocketNetwork::Post(std::function<void()> run) {
  {
    MutexLock lock(mu_);
    posted_.push_back(std::move(run));
  }
  eventfd_write(bell_, 1);
}

void SocketNetwork::RunPosted() {
  std::vector<std::function<void()>> posted;
  {
    MutexLock lock(mu_);
    posted.swap(posted_);
  }
  for (const auto& run : posted) {
    run();
  }
}

void SocketNetwork::Run(Hub* hub) {
  std::array<epoll_event, 64> events;
  while (true) {
    const Hub::Time next = hub->Poll();
    // A second is as good as the very moment.
    const int wait_ms = next == Hub::Time::max() ? -1 : 1000;
    const int num_events =
        epoll_wait(epoll_, events.data(), events.size(), wait_ms);
    for (int i = 0; i < num_events; ++i) {
      auto* connection = static_cast<Connection*>(events[i].data.ptr);
      if (connection == nullptr) {
        eventfd_t rung;
        eventfd_read(bell_, &rung);
        RunPosted();
      } else {
        Handle(hub, connection, events[i].events);
      }
    }
  }
}

void SocketNetwork::Handle(Hub* hub, Connection* connection, unsigned events) {
  bool goes_on = true;
  if ((events & EPOLLOUT) != 0) {
    goes_on = connection->OnWritable();
  }
  if (goes_on && (events & ~EPOLLOUT) != 0) {
    goes_on = connection->OnReadable();
  }
  if (goes_on) {
    return;
  }
  const auto* stream = static_cast<SocketStream*>(connection->stream());
  epoll_ctl(epoll_, EPOLL_CTL_DEL, stream->socket(), nullptr);
  Hub::ConnectionPtr last;
  {
    MutexLock lock(mu_);
    const auto watched = watched_.find(connection);
    last = std::move(watched->second);
    watched_.erase(watched);
  }
  hub->OnOver(last);
}

}  // namespace wire
}  // namespace tf_syncrep
