// The cost of the wire alone: small requests and their answers, one after the
// other, and answers of many bytes, between two processes of this machine; and
// the same by TCP without anything on it, on blocking sockets.
//
// Prints one line of JSON: for both, the processor time of both processes and
// the time on the clock. Fails if a byte is wrong.
//
// Usage: wire_bench NUM_SMALL NUM_LARGE LARGE_BYTES

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/frame_reader.h"
#include "tf_syncrep/cc/lib/wire/hub.h"
#include "tf_syncrep/cc/lib/wire/socket_network.h"

namespace {

using tf_syncrep::wire::Answer;
using tf_syncrep::wire::Body;
using tf_syncrep::wire::Hub;
using tf_syncrep::wire::OutBody;
using tf_syncrep::wire::SocketNetwork;
using tf_syncrep::wire::SocketStream;
using tf_syncrep::wire::TextBody;

// As long as the key of a tensor.
constexpr int kSmallBytes = 120;
constexpr uint8_t kSmall = 1;
constexpr uint8_t kLarge = 2;

void Check(bool holds, const char* what) {
  if (!holds) {
    std::perror(what);
    std::exit(1);
  }
}

// What both sides send.
std::shared_ptr<const std::string> LargeBytes(size_t size) {
  auto bytes = std::make_shared<std::string>(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    (*bytes)[i] = static_cast<char>(i * 31 >> 3);
  }
  return bytes;
}

// Memory that is used again, as TensorFlow's allocator does with large tensors.
class Kept : public Body {
 public:
  explicit Kept(char* memory) : memory_(memory) {}
  char* data() override { return memory_; }

 private:
  char* const memory_;
};

class Answerer : public Hub::Server {
 public:
  explicit Answerer(std::shared_ptr<const std::string> large)
      : large_(std::move(large)) {}
  std::unique_ptr<Body> MakeBody(uint8_t, uint64_t size) override {
    return std::make_unique<TextBody>(size);
  }
  void OnRequest(const Hub::ConnectionPtr& connection, uint64_t id,
                 uint8_t method, std::string_view meta,
                 std::unique_ptr<Body>) override {
    if (method == kLarge) {
      connection->Answer(id, 0, meta, {large_->data(), large_->size(), large_});
    } else {
      connection->Answer(id, 0, meta, {});
    }
  }

 private:
  const std::shared_ptr<const std::string> large_;
};

// A task with a wire. It is never destroyed.
Hub* MakeHub(const std::string& name, Hub::Server* server) {
  SocketNetwork* const network = SocketNetwork::Make();
  Check(network != nullptr, "epoll");
  auto* const hub = new Hub(
      {"1", name, "", static_cast<uint64_t>(getpid())}, server, network,
      [] { return std::chrono::steady_clock::now().time_since_epoch(); },
      [](const std::string&, const std::string&) {});
  Check(network->Start(hub), "thread");
  return hub;
}

bool ReadAll(int socket, char* to, size_t size) {
  while (size > 0) {
    const ssize_t some = read(socket, to, size);
    if (some <= 0) {
      return false;
    }
    to += some;
    size -= some;
  }
  return true;
}

void WriteAll(int socket, const char* from, size_t size) {
  while (size > 0) {
    const ssize_t some = write(socket, from, size);
    Check(some > 0, "write");
    from += some;
    size -= some;
  }
}

// The first byte of a request says which answer is wanted.
void AnswerByTcp(int socket, const std::string& large) {
  char request[kSmallBytes];
  while (ReadAll(socket, request, sizeof request)) {
    const bool is_large = request[0] == kLarge;
    WriteAll(socket, is_large ? large.data() : request,
             is_large ? large.size() : sizeof request);
  }
}

double Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

struct Cost {
  double cpu_secs;
  double secs;
};

// The cost of one of `count` calls, which `call` makes one after the other, in
// this process and another one.
Cost CostOf(clockid_t other, int count, const std::function<void(int)>& call) {
  if (count == 0) {
    return {0, 0};
  }
  call(count / 10 + 1);
  const auto cpu = [other] {
    return Now(CLOCK_PROCESS_CPUTIME_ID) + Now(other);
  };
  const double cpu_before = cpu();
  const double before = Now(CLOCK_MONOTONIC);
  call(count);
  return {(cpu() - cpu_before) / count,
          (Now(CLOCK_MONOTONIC) - before) / count};
}

}  // namespace

int main(int argc, char** argv) {
  Check(argc == 4, "three numbers are wanted");
  const int num_small = std::atoi(argv[1]);
  const int num_large = std::atoi(argv[2]);
  const auto large = LargeBytes(std::atoll(argv[3]));

  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  Check(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
            listen(listener, 4) == 0 &&
            getsockname(listener, reinterpret_cast<sockaddr*>(&address),
                        &size) == 0,
        "listen");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Hub* const hub = MakeHub("server", new Answerer(large));
    hub->Accept(
        std::make_unique<SocketStream>(accept(listener, nullptr, nullptr)));
    const int raw = accept(listener, nullptr, nullptr);
    const int on = 1;
    setsockopt(raw, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    AnswerByTcp(raw, *large);
    _exit(0);
  }
  clockid_t other;
  Check(clock_getcpuclockid(child, &other) == 0, "the other's clock");

  Hub* const hub = MakeHub("client", new Answerer(large));
  hub->SetAddress("server",
                  "127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  std::promise<Hub::ConnectionPtr> found;
  hub->Await("server", [&](Hub::ConnectionPtr connection, bool) {
    found.set_value(std::move(connection));
  });
  const Hub::ConnectionPtr connection = found.get_future().get();
  Check(connection != nullptr, "connection");
  const int raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Check(connect(raw, reinterpret_cast<sockaddr*>(&address), size) == 0,
        "connect");
  const int on = 1;
  setsockopt(raw, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);

  std::vector<char> memory(large->size());
  const std::string small(kSmallBytes, 'k');
  // The answer to one is the reason for the next, as in a step of TensorFlow.
  const auto ask = [&](uint8_t method, int count) {
    std::promise<void> end;
    std::function<void(int)> ask_from = [&](int left) {
      if (left == 0) {
        end.set_value();
        return;
      }
      connection->Ask(
          method, small, {},
          [&](std::string_view, uint64_t bytes) -> std::unique_ptr<Body> {
            return bytes == memory.size()
                       ? std::make_unique<Kept>(memory.data())
                       : nullptr;
          },
          [&, left](Answer answer) {
            Check(answer.how == Answer::How::kAnswered &&
                      answer.meta == small &&
                      (answer.body != nullptr) == (method == kLarge),
                  "an answer");
            ask_from(left - 1);
          });
    };
    ask_from(count);
    end.get_future().wait();
  };
  const auto ask_by_tcp = [&](uint8_t method, int count) {
    std::string request = small;
    request[0] = static_cast<char>(method);
    std::vector<char> answer(kSmallBytes);
    for (int i = 0; i < count; ++i) {
      WriteAll(raw, request.data(), request.size());
      Check(method == kLarge ? ReadAll(raw, memory.data(), memory.size())
                             : ReadAll(raw, answer.data(), answer.size()),
            "an answer by TCP");
    }
  };
  const auto has_large = [&] {
    const bool is_right =
        std::memcmp(memory.data(), large->data(), large->size()) == 0;
    std::memset(memory.data(), 0, memory.size());
    Check(is_right, "bytes");
  };
  const Cost wire = CostOf(other, num_small, [&](int n) { ask(kSmall, n); });
  const Cost tcp =
      CostOf(other, num_small, [&](int n) { ask_by_tcp(kSmall, n); });
  const Cost large_wire =
      CostOf(other, num_large, [&](int n) { ask(kLarge, n); });
  if (num_large > 0) {
    has_large();
  }
  const Cost large_tcp =
      CostOf(other, num_large, [&](int n) { ask_by_tcp(kLarge, n); });
  if (num_large > 0) {
    has_large();
  }
  std::printf(
      "{\"small\": {\"wire\": [%g, %g], \"tcp\": [%g, %g]}, "
      "\"large\": {\"wire\": [%g, %g], \"tcp\": [%g, %g]}}\n",
      wire.cpu_secs, wire.secs, tcp.cpu_secs, tcp.secs, large_wire.cpu_secs,
      large_wire.secs, large_tcp.cpu_secs, large_tcp.secs);
  std::fflush(stdout);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  _exit(0);
}
