// Hubs of one process over TCP connections of this machine.

#include "tf_syncrep/cc/lib/wire/socket_network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/hub.h"

namespace tf_syncrep {
namespace wire {
namespace {

constexpr auto kDeadline = std::chrono::seconds(60);

// Answers a request with its own body; one of method 3, never.
class Echo : public Hub::Server {
 public:
  std::unique_ptr<Body> MakeBody(uint8_t, uint64_t size) override {
    return std::make_unique<TextBody>(size);
  }
  void OnRequest(const Hub::ConnectionPtr& connection, uint64_t id,
                 uint8_t method, std::string_view meta,
                 std::unique_ptr<Body> body) override {
    if (method == 3) {
      return;
    }
    if (method == 2) {
      std::string text(kMuch, 'x');
      connection->Answer(id, 0, meta, OutBody::Of(std::move(text)));
      return;
    }
    connection->Answer(id, 0, meta,
                       body == nullptr
                           ? OutBody()
                           : OutBody::Of(static_cast<TextBody&>(*body).text()));
  }
  static constexpr size_t kMuch = 50'000'000;
};

// A listening socket, as gRPC has one.
class Listener {
 public:
  explicit Listener(int family) : family_(family) {
    socket_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_loopback;
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int failed =
        family == AF_INET6
            ? bind(socket_, reinterpret_cast<sockaddr*>(&six), sizeof six)
            : bind(socket_, reinterpret_cast<sockaddr*>(&four), sizeof four);
    is_there = failed == 0 && listen(socket_, 16) == 0;
  }
  ~Listener() { close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  std::string Address() const {
    sockaddr_in6 bound{};
    socklen_t size = sizeof bound;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &size);
    // The port is at the same place in both families.
    const std::string port = std::to_string(ntohs(bound.sin6_port));
    return (family_ == AF_INET6 ? "[::1]:" : "127.0.0.1:") + port;
  }
  int Accept() const { return accept(socket_, nullptr, nullptr); }

  bool is_there;

 private:
  const int family_;
  int socket_;
};

// A task. Hub and network are never destroyed, as in the product.
struct Task {
  explicit Task(const std::string& name) {
    network = SocketNetwork::Make();
    hub = new Hub(
        {"1", name, "", 1}, new Echo, network,
        [] { return std::chrono::steady_clock::now().time_since_epoch(); },
        [](const std::string&, const std::string&) {});
    EXPECT_TRUE(network->Start(hub));
  }
  Hub::ConnectionPtr Await(const std::string& task) {
    auto found = std::make_shared<std::promise<Hub::ConnectionPtr>>();
    auto future = found->get_future();
    hub->Await(task, [found](Hub::ConnectionPtr connection, bool) {
      found->set_value(std::move(connection));
    });
    EXPECT_EQ(future.wait_for(kDeadline), std::future_status::ready);
    return future.get();
  }
  SocketNetwork* network;
  Hub* hub;
};

std::string Ask(const Hub::ConnectionPtr& connection, uint8_t method,
                const std::string& body) {
  auto answered = std::make_shared<std::promise<std::string>>();
  auto future = answered->get_future();
  connection->Ask(
      method, "meta", OutBody::Of(body),
      [](std::string_view, uint64_t size) {
        return std::make_unique<TextBody>(size);
      },
      [answered](Answer answer) {
        answered->set_value(answer.how == Answer::How::kLost ? "lost"
                            : answer.body == nullptr
                                ? ""
                                : static_cast<TextBody&>(*answer.body).text());
      });
  EXPECT_EQ(future.wait_for(kDeadline), std::future_status::ready);
  return future.get();
}

class SocketNetworkTest : public testing::TestWithParam<int> {
 protected:
  SocketNetworkTest() : listener(GetParam()), a("a"), b("b") {}
  void SetUp() override {
    if (!listener.is_there) {
      GTEST_SKIP() << "no such addresses here";
    }
    a.hub->SetAddress("b", listener.Address());
    std::thread accepting([this] {
      b.hub->Accept(std::make_unique<SocketStream>(listener.Accept()));
    });
    connection = a.Await("b");
    accepting.join();
    ASSERT_NE(connection, nullptr);
  }
  Listener listener;
  Task a;
  Task b;
  Hub::ConnectionPtr connection;
};

TEST_P(SocketNetworkTest, AsksBothWays) {
  EXPECT_EQ(Ask(connection, 1, "bytes"), "bytes");
  const auto back = b.hub->Find("a");
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(Ask(back, 1, "more bytes"), "more bytes");
}

TEST_P(SocketNetworkTest, LargeBodiesGoBothWaysAtOnce) {
  std::string large(30'000'000, 'y');
  const auto back = b.hub->Find("a");
  std::thread other([&] { EXPECT_EQ(Ask(back, 1, large), large); });
  EXPECT_EQ(Ask(connection, 1, large), large);
  EXPECT_EQ(Ask(connection, 2, "").size(), Echo::kMuch);
  other.join();
}

TEST_P(SocketNetworkTest, ManyThreadsAsk) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 300; ++j) {
        const std::string text = std::to_string(1000 * i + j);
        right += Ask(connection, 1, text) == text;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(right, 8 * 300);
}

TEST_P(SocketNetworkTest, ALossWhileMuchIsUnderWayEndsTheRequest) {
  auto ended = std::make_shared<std::promise<bool>>();
  const auto back = b.hub->Find("a");
  connection->Ask(
      2, "", {},
      [back](std::string_view, uint64_t size) {
        // The head is here, and most of the body is not.
        back->Shutdown();
        return std::make_unique<TextBody>(size);
      },
      [ended](const Answer& answer) {
        ended->set_value(answer.how == Answer::How::kLost);
      });
  auto future = ended->get_future();
  ASSERT_EQ(future.wait_for(kDeadline), std::future_status::ready);
  EXPECT_TRUE(future.get());
  EXPECT_EQ(Ask(connection, 1, "x"), "lost");
}

TEST_P(SocketNetworkTest, CancelSoonEndsARequestThatNobodyAnswers) {
  auto ended = std::make_shared<std::promise<bool>>();
  const uint64_t id =
      connection->Ask(3, "", {}, nullptr, [ended](const Answer& answer) {
        ended->set_value(answer.how == Answer::How::kCancelled);
      });
  a.hub->CancelSoon(connection, id);
  auto future = ended->get_future();
  ASSERT_EQ(future.wait_for(kDeadline), std::future_status::ready);
  EXPECT_TRUE(future.get());
}

INSTANTIATE_TEST_SUITE_P(Families, SocketNetworkTest,
                         testing::Values(AF_INET, AF_INET6));

TEST(SocketNetwork, ADialThatFailsSaysWhy) {
  static SocketNetwork* const network = SocketNetwork::Make();
  const auto reason = [](const std::string& address) {
    auto said = std::make_shared<std::promise<std::string>>();
    network->Dial(address,
                  [said](std::unique_ptr<Stream> stream, std::string why) {
                    said->set_value(stream == nullptr ? why : "connected");
                  });
    return said->get_future().get();
  };
  // Nobody listens any more at a port that somebody had.
  const std::string free = Listener(AF_INET).Address();
  EXPECT_EQ(reason(free), "Connection refused");
  EXPECT_EQ(reason("nowhere"), "no port in nowhere");
  EXPECT_NE(reason("no host of this name:1").find("no host of this name: "),
            std::string::npos);
}

TEST(SocketNetwork, WithoutDescriptorsNothingIsConnectedAndNothingEnds) {
  Listener listener(AF_INET);
  Task a("a");
  Task b("b");
  a.hub->SetAddress("b", listener.Address());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_EQ(a.Await("b"), nullptr);
  EXPECT_EQ(SocketNetwork::Make(), nullptr);
  setrlimit(RLIMIT_NOFILE, &before);
  std::thread accepting([&] {
    b.hub->Accept(std::make_unique<SocketStream>(listener.Accept()));
  });
  const auto connection = a.Await("b");
  accepting.join();
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(Ask(connection, 1, "bytes"), "bytes");
}

}  // namespace
}  // namespace wire
}  // namespace tf_syncrep
