// Who finds whom: tasks of a made network, with a clock that the test moves.

#include "tf_syncrep/cc/lib/wire/hub.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/wire/memory_stream.h"
#include "tf_syncrep/cc/lib/wire/connection.h"
#include "tf_syncrep/cc/lib/wire/frame.h"

namespace tf_syncrep {
namespace wire {
namespace {

using std::chrono::seconds;
using ConnectionPtr = Hub::ConnectionPtr;

class Task;

// Addresses are names of tasks.
class MadeNetwork {
 public:
  Task& Add(const std::string& name, const std::string& version = "1");
  // Carries bytes, and calls what is due, until nothing happens any more.
  void Move();
  void Advance(Hub::Time time) {
    now += time;
    Move();
  }

  Hub::Time now{};
  std::map<std::string, std::unique_ptr<Task>> tasks;
  // Tasks that have another protocol, and what they say before they close.
  std::map<std::string, std::string> strangers;
  // Tasks that accept, and say nothing.
  std::vector<std::unique_ptr<Stream>> silent;
  int num_dialled = 0;
};

class Task : public Hub::Network, public Hub::Server {
 public:
  Task(MadeNetwork* network, std::string name, const std::string& version,
       uint64_t incarnation)
      : network_(network),
        hub(
            {version, name, "", incarnation}, this, this,
            [network] { return network->now; },
            [this](const std::string& task, const std::string& what) {
              said.push_back(task + ": " + what);
            }) {}

  void Dial(const std::string& address, Dialled dialled) override {
    ++network_->num_dialled;
    due_.push_back([this, address, dialled = std::move(dialled)] {
      auto [here, there] = MemoryStream::Pair();
      const auto task = network_->tasks.find(address);
      if (task != network_->tasks.end()) {
        task->second->hub.Accept(std::move(there));
      } else if (network_->strangers.count(address) != 0) {
        std::string& said = network_->strangers[address];
        const iovec part{said.data(), said.size()};
        there->Write(&part, 1);
        there->Shutdown();
      } else if (address == "silent") {
        network_->silent.push_back(std::move(there));
      } else {
        dialled(nullptr, "nobody is there");
        return;
      }
      dialled(std::move(here), "");
    });
  }
  bool Watch(const ConnectionPtr& connection) override {
    if (watches) {
      watched.push_back(connection);
    }
    return watches;
  }
  void WantsToWrite(Connection*, bool) override {}
  void Post(std::function<void()> run) override {
    due_.push_back(std::move(run));
  }
  std::unique_ptr<Body> MakeBody(uint8_t, uint64_t size) override {
    return std::make_unique<TextBody>(size);
  }
  void OnRequest(const ConnectionPtr& connection, uint64_t id, uint8_t,
                 std::string_view meta, std::unique_ptr<Body>) override {
    if (meta == "silence") {
      connection->SetCancel(id, [this] { ++num_cancelled; });
      return;
    }
    connection->Answer(id, 0, "echo of " + std::string(meta), {});
  }

  // Returns whether something happened.
  void Turn() {
    std::vector<std::function<void()>> due;
    due.swap(due_);
    for (const auto& f : due) {
      f();
    }
    hub.Poll();
    const std::vector<ConnectionPtr> all = watched;
    for (const ConnectionPtr& connection : all) {
      if (!connection->OnReadable()) {
        watched.erase(std::find(watched.begin(), watched.end(), connection));
        hub.OnOver(connection);
      }
    }
  }
  void Die() {
    for (const ConnectionPtr& connection : watched) {
      connection->Shutdown();
    }
  }
  // Asks a task over its connection, and returns what it answers.
  std::string Echo(const std::string& task, const std::string& text) {
    const ConnectionPtr connection = hub.Find(task);
    if (connection == nullptr) {
      return "no connection";
    }
    std::string echo = "nothing";
    connection->Ask(1, text, {}, nullptr, [&echo](Answer answer) {
      echo =
          answer.how == Answer::How::kLost ? "lost" : std::string(answer.meta);
    });
    network_->Move();
    return echo;
  }

 private:
  MadeNetwork* const network_;
  std::vector<std::function<void()>> due_;

 public:
  bool watches = true;
  int num_cancelled = 0;
  std::vector<ConnectionPtr> watched;
  std::vector<std::string> said;
  Hub hub;
};

Task& MadeNetwork::Add(const std::string& name, const std::string& version) {
  static uint64_t incarnation = 0;
  auto& task = tasks[name];
  task = std::make_unique<Task>(this, name, version, ++incarnation);
  for (const auto& [other, has] : tasks) {
    has->hub.SetAddress(name, name);
    task->hub.SetAddress(other, other);
  }
  return *task;
}

void MadeNetwork::Move() {
  for (int i = 0; i < 20; ++i) {
    for (const auto& [name, task] : tasks) {
      task->Turn();
    }
  }
}

class HubTest : public testing::Test {
 protected:
  MadeNetwork network;
};

TEST_F(HubTest, FindsNobodyBeforeItHasDialledAndThenTheTask) {
  Task& a = network.Add("a");
  network.Add("b");
  EXPECT_EQ(a.hub.Find("b"), nullptr);
  network.Move();
  EXPECT_EQ(a.Echo("b", "x"), "echo of x");
  EXPECT_EQ(a.said, std::vector<std::string>{"b: yes"});
}

TEST_F(HubTest, TheTaskThatWasDialledUsesTheSameConnection) {
  Task& a = network.Add("a");
  Task& b = network.Add("b");
  a.hub.Find("b");
  network.Move();
  EXPECT_EQ(b.Echo("a", "x"), "echo of x");
  EXPECT_EQ(network.num_dialled, 1);
}

TEST_F(HubTest, TasksThatDialEachOtherAtOnceBothGetThrough) {
  Task& a = network.Add("a");
  Task& b = network.Add("b");
  a.hub.Find("b");
  b.hub.Find("a");
  network.Move();
  EXPECT_EQ(a.Echo("b", "x"), "echo of x");
  EXPECT_EQ(b.Echo("a", "y"), "echo of y");
}

TEST_F(HubTest, AwaitEndsWithTheConnectionOrWithout) {
  Task& a = network.Add("a");
  network.Add("b");
  a.hub.SetAddress("c", "nowhere");
  std::vector<bool> found;
  const auto note = [&](const ConnectionPtr& connection, bool) {
    found.push_back(connection != nullptr);
  };
  a.hub.Await("b", note);
  a.hub.Await("b", note);
  EXPECT_TRUE(found.empty());
  network.Move();
  EXPECT_EQ(found, (std::vector<bool>{true, true}));
  a.hub.Await("b", note);
  EXPECT_EQ(found.size(), 3);
  found.clear();
  a.hub.Await("c", note);
  a.hub.Await("unknown", note);
  network.Move();
  EXPECT_EQ(found, (std::vector<bool>{false, false}));
  EXPECT_EQ(a.said.back(), "c: no: nobody is there");
}

TEST_F(HubTest, AwaitTellsTasksWithoutAWireFromThoseThatAreNotThere) {
  Task& a = network.Add("a");
  network.Add("b");
  network.Add("other version", "2");
  network.strangers["stranger"] = "HTTP/2";
  network.strangers["tunnel"] = "";  // It closes: there is nobody behind it.
  const std::map<std::string, bool> answers = {
      {"b", true},        {"other version", true}, {"stranger", true},
      {"tunnel", false},  {"silent", false},       {"nowhere", false},
      {"unknown", false},
  };
  std::map<std::string, bool> answered;
  for (const auto& [task, answer] : answers) {
    if (task != "unknown") {
      a.hub.SetAddress(task, task);
    }
    a.hub.Await(task, [&, name = task](const ConnectionPtr& connection,
                                       bool has_answered) {
      EXPECT_EQ(connection != nullptr, name == "b");
      answered[name] = has_answered;
    });
  }
  network.Move();
  for (const auto& [task, answer] : answers) {
    const bool may = task == "b" || (task != "unknown" && !answer);
    EXPECT_EQ(a.hub.MayHaveWire(task), may) << task;
  }
  network.Advance(Hub::kPatience);
  EXPECT_EQ(answered, answers);
  // The one that is there now is found, however soon that is.
  network.Add("nowhere");
  bool is_found = false;
  a.hub.Await("nowhere", [&](const ConnectionPtr& connection, bool) {
    is_found = connection != nullptr;
  });
  network.Move();
  EXPECT_TRUE(is_found);
}

TEST_F(HubTest, ATaskWithoutAWireIsTriedAgainNowAndThen) {
  Task& a = network.Add("a");
  a.hub.SetAddress("b", "b");
  network.strangers["b"] = "HTTP/2";
  a.hub.Find("b");
  network.Move();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(a.hub.Find("b"), nullptr);
  }
  network.Move();
  EXPECT_EQ(network.num_dialled, 1);
  EXPECT_FALSE(a.hub.MayHaveWire("b"));
  for (int i = 0; i < 600; ++i) {
    network.Advance(seconds(1));
    a.hub.Find("b");
  }
  EXPECT_GT(network.num_dialled, 10);
  EXPECT_LT(network.num_dialled, 20);
  EXPECT_EQ(a.said,
            std::vector<std::string>{"b: no: it does not speak this protocol"});
  // It comes back with one.
  network.strangers.clear();
  network.Add("b");
  network.Advance(seconds(60));
  EXPECT_TRUE(a.hub.MayHaveWire("b"));
  a.hub.Find("b");
  network.Move();
  EXPECT_EQ(a.Echo("b", "x"), "echo of x");
  EXPECT_EQ(a.said.back(), "b: yes");
}

TEST_F(HubTest, AnotherVersionIsNoWireAndBothSayWhy) {
  Task& a = network.Add("a", "1");
  Task& b = network.Add("b", "2");
  a.hub.Find("b");
  network.Move();
  EXPECT_EQ(a.hub.Find("b"), nullptr);
  EXPECT_EQ(a.said, std::vector<std::string>{
                        "b: no: it has version 2, and this task 1"});
  EXPECT_EQ(b.said, std::vector<std::string>{
                        "a: no: it has version 1, and this task 2"});
}

TEST_F(HubTest, AnAddressThatLeadsToAnotherTaskIsNoWire) {
  Task& a = network.Add("a");
  network.Add("b");
  a.hub.SetAddress("c", "b");
  a.hub.Find("c");
  network.Move();
  EXPECT_EQ(a.hub.Find("c"), nullptr);
  EXPECT_EQ(a.said, std::vector<std::string>{"c: no: it is b"});
}

TEST_F(HubTest, ATaskThatSaysNothingIsLeftInTime) {
  Task& a = network.Add("a");
  a.hub.SetAddress("b", "silent");
  bool is_known = false;
  a.hub.Await("b", [&](const ConnectionPtr& connection, bool) {
    EXPECT_EQ(connection, nullptr);
    is_known = true;
  });
  network.Move();
  network.Advance(seconds(9));
  EXPECT_FALSE(is_known);
  network.Advance(seconds(1));
  EXPECT_TRUE(is_known);
  EXPECT_TRUE(a.watched.empty());
}

TEST_F(HubTest, SomebodyWhoDialsAndSaysNothingIsLeftInTime) {
  Task& a = network.Add("a");
  auto [here, there] = MemoryStream::Pair();
  a.hub.Accept(std::move(there));
  EXPECT_EQ(a.hub.Poll(), network.now + Hub::kPatience);
  network.Advance(seconds(10));
  EXPECT_TRUE(a.watched.empty());
  EXPECT_EQ(a.hub.Poll(), Hub::Time::max());
}

TEST_F(HubTest, AConnectionThatCannotBeWatchedIsNone) {
  Task& a = network.Add("a");
  Task& b = network.Add("b");
  for (Task* without : {&a, &b}) {
    without->watches = false;
    bool is_known = false;
    a.hub.Await("b", [&](const ConnectionPtr& connection, bool) {
      EXPECT_EQ(connection, nullptr);
      is_known = true;
    });
    network.Move();
    EXPECT_TRUE(is_known);
    without->watches = true;
  }
  network.Advance(Hub::kLastPause);
  a.hub.Find("b");
  network.Move();
  EXPECT_EQ(a.Echo("b", "x"), "echo of x");
}

TEST_F(HubTest, ATaskThatComesBackIsFoundAgain) {
  Task& a = network.Add("a");
  network.Add("b");
  a.hub.Find("b");
  network.Move();
  const ConnectionPtr before = a.hub.Find("b");
  network.tasks["b"]->Die();
  network.Move();
  network.Add("b");
  EXPECT_EQ(a.hub.Find("b"), nullptr);
  network.Move();
  EXPECT_EQ(a.Echo("b", "x"), "echo of x");
  EXPECT_NE(a.hub.Find("b"), before);
}

TEST_F(HubTest, AnotherIncarnationEndsTheConnectionWithTheFormer) {
  Task& a = network.Add("a");
  network.Add("b");
  a.hub.Find("b");
  network.Move();
  std::string ended = "not yet";
  // Nobody has told this end that b's machine is gone.
  auto former = std::move(network.tasks["b"]);
  network.tasks.erase("b");
  a.hub.Find("b")->Ask(1, "x", {}, nullptr, [&](Answer answer) {
    ended = answer.how == Answer::How::kLost ? "lost" : "answered";
  });
  Task& b = network.Add("b");
  b.hub.Find("a");
  network.Move();
  EXPECT_EQ(ended, "lost");
  EXPECT_EQ(a.Echo("b", "x"), "echo of x");
  former->Die();
}

TEST_F(HubTest, CancelSoonEndsARequestThoughTheCallerHoldsALock) {
  Task& a = network.Add("a");
  network.Add("b");
  a.hub.Find("b");
  network.Move();
  bool is_held = true;
  bool is_cancelled = false;
  const ConnectionPtr connection = a.hub.Find("b");
  const uint64_t id = connection->Ask(1, "x", {}, nullptr, [&](Answer answer) {
    EXPECT_FALSE(is_held);
    is_cancelled = answer.how == Answer::How::kCancelled;
  });
  a.hub.CancelSoon(connection, id);
  is_held = false;
  network.Move();
  EXPECT_TRUE(is_cancelled);
}

TEST_F(HubTest, WhatIsStoppedEndsWithItsAnswerOrInTime) {
  Task& a = network.Add("a");
  Task& b = network.Add("b");
  a.hub.Find("b");
  network.Move();
  const ConnectionPtr connection = a.hub.Find("b");
  std::map<std::string, Answer::How> ended;
  for (const std::string& what : {"silence", "x"}) {
    a.hub.StopSoon(connection, connection->Ask(1, what, {}, nullptr,
                                               [&ended, what](Answer answer) {
                                                 ended[what] = answer.how;
                                               }));
  }
  network.Move();
  EXPECT_EQ(ended.size(), 1);
  EXPECT_EQ(ended["x"], Answer::How::kAnswered);
  EXPECT_EQ(b.num_cancelled, 1);
  EXPECT_EQ(a.hub.Poll(), network.now + Hub::kStopPatience);
  network.Advance(Hub::kStopPatience);
  EXPECT_EQ(ended.size(), 2);
  EXPECT_EQ(ended["silence"], Answer::How::kCancelled);
  EXPECT_EQ(a.hub.Poll(), Hub::Time::max());
}

TEST_F(HubTest, TwoHundredTasksTalkToOne) {
  Task& server = network.Add("server");
  for (int i = 0; i < 200; ++i) {
    network.Add("t" + std::to_string(i)).hub.Find("server");
  }
  network.Move();
  for (int i = 0; i < 200; ++i) {
    EXPECT_NE(server.hub.Find("t" + std::to_string(i)), nullptr);
  }
  EXPECT_EQ(network.num_dialled, 200);
}

}  // namespace
}  // namespace wire
}  // namespace tf_syncrep
