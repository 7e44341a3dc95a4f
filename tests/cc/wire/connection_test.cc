// Requests, answers, cancellation and losses between two ends in one process.

#include "tf_syncrep/cc/lib/wire/connection.h"

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/wire/memory_stream.h"
#include "tf_syncrep/cc/lib/wire/frame.h"

namespace tf_syncrep {
namespace wire {
namespace {

using ConnectionPtr = std::shared_ptr<Connection>;

// A request as it has come.
struct Request {
  ConnectionPtr connection;
  uint64_t id;
  uint8_t method;
  std::string meta;
  std::string body;
};

// An end that keeps what is asked of it.
class End : public Connection::Owner {
 public:
  bool OnHello(const ConnectionPtr&, const Hello& hello) override {
    hellos.push_back(hello.from);
    return takes_hellos;
  }
  std::unique_ptr<Body> MakeBody(uint8_t, uint64_t size) override {
    return std::make_unique<TextBody>(size);
  }
  void OnRequest(const ConnectionPtr& connection, uint64_t id, uint8_t method,
                 std::string_view meta, std::unique_ptr<Body> body) override {
    requests.push_back(
        {connection, id, method, std::string(meta),
         body == nullptr ? "" : static_cast<TextBody&>(*body).text()});
  }
  void WantsToWrite(Connection*, bool wants) override {
    wants_to_write = wants;
  }

  std::vector<std::string> hellos;
  std::vector<Request> requests;
  bool takes_hellos = true;
  bool wants_to_write = false;
  bool is_over = false;
};

std::unique_ptr<Body> Text(std::string_view, uint64_t size) {
  return std::make_unique<TextBody>(size);
}

class ConnectionTest : public testing::Test {
 protected:
  void Connect(unsigned seed = 0, size_t capacity = 1 << 20) {
    auto [a, b] = MemoryStream::Pair(seed, capacity);
    dialler = std::make_shared<Connection>(std::move(a), &dialler_end, true);
    accepter = std::make_shared<Connection>(std::move(b), &accepter_end, false);
    dialler->SendHello({"1", "dialler", "accepter", 1});
    Move();
    accepter->SendHello({"1", "accepter", "dialler", 2});
    Move();
  }

  // Gives each end what has come for it, until nothing comes any more.
  void Move() {
    for (int i = 0; i < 20000; ++i) {
      Turn(dialler, dialler_end);
      Turn(accepter, accepter_end);
    }
  }

  static void Turn(const ConnectionPtr& connection, End& end) {
    if (end.is_over) {
      return;
    }
    if ((end.wants_to_write && !connection->OnWritable()) ||
        !connection->OnReadable()) {
      end.is_over = true;
      connection->End("lost");
    }
  }

  // Asks, and writes down how it ended.
  uint64_t Ask(const ConnectionPtr& connection, std::string meta,
               std::string body = "") {
    return connection->Ask(
        3, meta, OutBody::Of(std::move(body)), Text, [this](Answer answer) {
          ended.push_back({answer.how, answer.code, std::string(answer.meta),
                           answer.body == nullptr
                               ? ""
                               : static_cast<TextBody&>(*answer.body).text()});
        });
  }

  struct Ended {
    Answer::How how;
    int code;
    std::string meta;
    std::string body;
  };
  End dialler_end;
  End accepter_end;
  ConnectionPtr dialler;
  ConnectionPtr accepter;
  std::vector<Ended> ended;
};

TEST_F(ConnectionTest, BothEndsAskAndAnswer) {
  Connect();
  Ask(dialler, "what?", "a body");
  Ask(accepter, "and you?");
  Move();
  ASSERT_EQ(accepter_end.requests.size(), 1);
  EXPECT_EQ(accepter_end.requests[0].method, 3);
  EXPECT_EQ(accepter_end.requests[0].meta, "what?");
  EXPECT_EQ(accepter_end.requests[0].body, "a body");
  ASSERT_EQ(dialler_end.requests.size(), 1);
  accepter->Answer(accepter_end.requests[0].id, 0, "this",
                   OutBody::Of("bytes"));
  dialler->Answer(dialler_end.requests[0].id, 3, "no argument", {});
  Move();
  ASSERT_EQ(ended.size(), 2);
  EXPECT_EQ(ended[0].code + ended[1].code, 3);
  const Ended& fine = ended[0].code == 0 ? ended[0] : ended[1];
  EXPECT_EQ(fine.meta, "this");
  EXPECT_EQ(fine.body, "bytes");
}

TEST_F(ConnectionTest, BytesArriveThroughStreamsThatTakeFewAtATime) {
  for (unsigned seed = 1; seed < 10; ++seed) {
    ended.clear();
    dialler_end = accepter_end = End();
    Connect(seed, /*capacity=*/1000);
    std::mt19937 random(seed);
    std::unordered_map<std::string, std::string> sent;
    for (int i = 0; i < 20; ++i) {
      std::string body(random() % 5000, static_cast<char>('a' + i));
      sent[std::to_string(i)] = body;
      Ask(dialler, std::to_string(i), body);
    }
    Move();
    ASSERT_EQ(accepter_end.requests.size(), 20);
    for (const Request& request : accepter_end.requests) {
      EXPECT_EQ(request.body, sent[request.meta]);
      accepter->Answer(request.id, 0, request.meta, OutBody::Of(request.body));
    }
    Move();
    ASSERT_EQ(ended.size(), 20);
    for (const Ended& one : ended) {
      EXPECT_EQ(one.body, sent[one.meta]);
    }
    EXPECT_FALSE(dialler_end.wants_to_write);
    EXPECT_FALSE(accepter_end.wants_to_write);
  }
}

TEST_F(ConnectionTest, CancelEndsARequestBeforeTheOtherEndHasHeardOfIt) {
  Connect();
  const uint64_t id = Ask(dialler, "slow");
  dialler->Cancel(id);
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].how, Answer::How::kCancelled);
  Move();
  bool is_cancelled = false;
  accepter->SetCancel(accepter_end.requests[0].id,
                      [&is_cancelled] { is_cancelled = true; });
  EXPECT_TRUE(is_cancelled);
  // Its answer is skipped, body and all, and the next one is not.
  accepter->Answer(accepter_end.requests[0].id, 0, "", OutBody::Of("late"));
  Ask(dialler, "next");
  Move();
  accepter->Answer(accepter_end.requests[1].id, 0, "fine", {});
  Move();
  ASSERT_EQ(ended.size(), 2);
  EXPECT_EQ(ended[1].meta, "fine");
}

TEST_F(ConnectionTest, CancelReachesWhoeverServesTheRequest) {
  Connect();
  const uint64_t id = Ask(dialler, "slow");
  Move();
  int cancelled = 0;
  accepter->SetCancel(accepter_end.requests[0].id, [&] { ++cancelled; });
  dialler->Cancel(id);
  dialler->Cancel(id);
  Move();
  EXPECT_EQ(cancelled, 1);
  EXPECT_EQ(ended.size(), 1);
}

TEST_F(ConnectionTest, CancelAfterTheAnswerDoesNothing) {
  Connect();
  const uint64_t id = Ask(dialler, "quick");
  Move();
  int cancelled = 0;
  accepter->SetCancel(accepter_end.requests[0].id, [&] { ++cancelled; });
  accepter->Answer(accepter_end.requests[0].id, 0, "", {});
  Move();
  dialler->Cancel(id);
  Move();
  EXPECT_EQ(cancelled, 0);
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].how, Answer::How::kAnswered);
}

TEST_F(ConnectionTest, StopWaitsForTheAnswer) {
  Connect();
  const uint64_t id = Ask(dialler, "slow");
  Move();
  int cancelled = 0;
  accepter->SetCancel(accepter_end.requests[0].id, [&] { ++cancelled; });
  EXPECT_TRUE(dialler->Stop(id));
  Move();
  EXPECT_EQ(cancelled, 1);
  EXPECT_TRUE(ended.empty());
  accepter->Answer(accepter_end.requests[0].id, 1, "has ended", {});
  Move();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].how, Answer::How::kAnswered);
  EXPECT_EQ(ended[0].meta, "has ended");
  EXPECT_FALSE(dialler->Stop(id));
}

TEST_F(ConnectionTest, ALostConnectionEndsWhatBothEndsWaitFor) {
  Connect();
  Ask(dialler, "one");
  Ask(accepter, "two");
  Move();
  int cancelled = 0;
  accepter->SetCancel(accepter_end.requests[0].id, [&] { ++cancelled; });
  dialler->Shutdown();
  Move();
  ASSERT_EQ(ended.size(), 2);
  for (const Ended& one : ended) {
    EXPECT_EQ(one.how, Answer::How::kLost);
    EXPECT_EQ(one.meta, "lost");
  }
  EXPECT_EQ(cancelled, 1);
  // What comes later ends at once, and is cancelled at once.
  Ask(dialler, "three");
  EXPECT_EQ(ended.size(), 3);
  accepter->SetCancel(accepter_end.requests[0].id, [&] { ++cancelled; });
  EXPECT_EQ(cancelled, 2);
  accepter->Answer(accepter_end.requests[0].id, 0, "", {});
}

TEST_F(ConnectionTest, ALossInTheMiddleOfABodyEndsTheRequest) {
  Connect(/*seed=*/0, /*capacity=*/5000);
  Ask(dialler, "much");
  Move();
  accepter->Answer(accepter_end.requests[0].id, 0, "",
                   OutBody::Of(std::string(100000, 'x')));
  Turn(dialler, dialler_end);
  accepter->Shutdown();
  Move();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].how, Answer::How::kLost);
}

TEST_F(ConnectionTest, AnEndThatDoesNotReadKeepsOnlyWhatItAskedFor) {
  Connect(/*seed=*/0, /*capacity=*/5000);
  for (int i = 0; i < 3; ++i) {
    Ask(dialler, "much");
  }
  Move();
  auto big = std::make_shared<const std::string>(100000, 'x');
  for (const Request& request : accepter_end.requests) {
    accepter->Answer(request.id, 0, "", {big->data(), big->size(), big});
  }
  EXPECT_EQ(big.use_count(), 4);  // Its answers wait; nothing is copied.
  EXPECT_TRUE(accepter_end.wants_to_write);
  dialler->Shutdown();
  Move();
  EXPECT_EQ(big.use_count(), 1);
}

TEST_F(ConnectionTest, AnEndThatDoesNotReadKeepsNoRequestForWhichNobodyWaits) {
  Connect(/*seed=*/0, /*capacity=*/5000);
  auto big = std::make_shared<const std::string>(100000, 'x');
  const auto ask = [&] {
    return dialler->Ask(3, "", {big->data(), big->size(), big}, Text,
                        [this](const Answer& answer) {
                          ended.push_back({answer.how, 0, "", ""});
                        });
  };
  const uint64_t half_sent = ask();
  const uint64_t unsent = ask();
  EXPECT_EQ(big.use_count(), 3);
  const uint64_t stopped = ask();
  dialler->Cancel(unsent);
  EXPECT_FALSE(dialler->Stop(stopped));
  dialler->Cancel(half_sent);
  EXPECT_EQ(big.use_count(), 2);
  EXPECT_EQ(ended.size(), 3);
  // The other end hears of the one that is under way, and the next one is
  // whole.
  ask();
  Move();
  ASSERT_EQ(accepter_end.requests.size(), 2);
  EXPECT_EQ(accepter_end.requests[1].body, *big);
  bool is_cancelled = false;
  accepter->SetCancel(accepter_end.requests[0].id,
                      [&] { is_cancelled = true; });
  EXPECT_TRUE(is_cancelled);
}

TEST_F(ConnectionTest, NothingIsAskedBeforeAHello) {
  auto [a, b] = MemoryStream::Pair();
  accepter = std::make_shared<Connection>(std::move(b), &accepter_end, false);
  dialler = std::make_shared<Connection>(std::move(a), &dialler_end, true);
  Ask(dialler, "too early");
  Move();
  EXPECT_TRUE(accepter_end.requests.empty());
  EXPECT_TRUE(accepter_end.is_over);
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].how, Answer::How::kLost);
}

TEST_F(ConnectionTest, ASecondHelloEndsIt) {
  Connect();
  dialler->SendHello({"1", "another", "accepter", 1});
  Move();
  EXPECT_TRUE(accepter_end.is_over);
  EXPECT_EQ(accepter_end.hellos, std::vector<std::string>{"dialler"});
}

TEST_F(ConnectionTest, AnEndThatRefusesAHelloIsLeft) {
  accepter_end.takes_hellos = false;
  Connect();
  EXPECT_TRUE(accepter_end.is_over);
  EXPECT_TRUE(dialler_end.is_over);
}

}  // namespace
}  // namespace wire
}  // namespace tf_syncrep
