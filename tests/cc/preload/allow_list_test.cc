// AllowList: who may connect, how names are followed, and what is said.

#include "tf_syncrep/cc/preload/allow_list.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tf_syncrep {
namespace {

using std::chrono::seconds;

constexpr int kPort = 2222;
// Threads that get only what others leave may take seconds to begin.
constexpr seconds kDeadline(100);

Network Address(const std::string& text) { return *Network::Parse(text); }

const Network& Own() {
  static const Network own = Address("10.0.0.1");
  return own;
}

// Names and what was said.
class AllowListTest : public testing::Test {
 protected:
  AllowList List(const std::string& text) {
    return AllowList(
        text,
        [this](const std::string& name) {
          const auto found = hosts_.find(name);
          return found == hosts_.end()
                     ? std::vector<Network>()
                     : std::vector<Network>{Address(found->second)};
        },
        [this](const std::string& sentence) { said_.push_back(sentence); });
  }

  static bool Allows(AllowList& list, const std::string& peer) {
    return list.Allows(Address(peer), Own(), kPort);
  }

  // Nothing was said but that this connection was refused.
  void ExpectRefused(const std::string& peer, const std::string& more = "") {
    const std::vector<std::string> expected = {
        "a connection from " + peer +
        " to port 2222 was refused: --allow does not name that host" + more};
    EXPECT_EQ(said_, expected);
  }

  std::map<std::string, std::string> hosts_;
  std::vector<std::string> said_;
};

TEST_F(AllowListTest, AlwaysAllowsThisMachine) {
  AllowList list = List("");
  for (const char* own : {"127.0.0.1", "127.0.0.2", "::1", "10.0.0.1"}) {
    EXPECT_TRUE(Allows(list, own)) << own;
  }
  EXPECT_FALSE(Allows(list, "10.0.0.2"));
}

TEST_F(AllowListTest, TellsOfStrangersOnceAMinute) {
  AllowList list = List("10.1.0.0/16,,fd00::5");
  EXPECT_FALSE(list.HasNames());
  EXPECT_TRUE(Allows(list, "10.1.2.3"));
  EXPECT_TRUE(Allows(list, "fd00::5"));
  EXPECT_FALSE(Allows(list, "10.2.0.0"));
  EXPECT_FALSE(Allows(list, "fd00::6"));
  ExpectRefused("10.2.0.0");
}

TEST_F(AllowListTest, LetsOthersInWhileASentenceIsSaid) {
  for (const char* text : {"10.0.0.2", "10.0.0.2,nobody"}) {
    std::future<bool> other;
    std::future_status status = std::future_status::deferred;
    AllowList list(
        text, [](const std::string&) { return std::vector<Network>(); },
        [&](const std::string&) {
          other = std::async(std::launch::async,
                             [&list] { return Allows(list, "10.0.0.2"); });
          status = other.wait_for(kDeadline);
        });
    EXPECT_FALSE(Allows(list, "10.0.0.7"));
    for (int i = 0; list.HasNames() && i < 5; ++i) {
      list.FollowOnce();
    }
    EXPECT_EQ(status, std::future_status::ready);
    EXPECT_TRUE(other.get());
  }
}

TEST_F(AllowListTest, FollowsNames) {
  hosts_ = {{"worker", "10.0.0.2"}};
  AllowList list = List("worker,10.9.0.0/16");
  EXPECT_TRUE(list.HasNames());
  // The name was not looked up yet.
  EXPECT_FALSE(Allows(list, "10.0.0.2"));
  list.FollowOnce();
  EXPECT_TRUE(Allows(list, "10.0.0.2"));
  EXPECT_TRUE(Allows(list, "10.9.0.1"));
  hosts_ = {{"worker", "10.0.0.3"}};
  EXPECT_FALSE(Allows(list, "10.0.0.3"));
  list.FollowOnce();
  EXPECT_TRUE(Allows(list, "10.0.0.3"));
  EXPECT_FALSE(Allows(list, "10.0.0.2"));
  // The name server does not answer.
  hosts_.clear();
  list.FollowOnce();
  EXPECT_TRUE(Allows(list, "10.0.0.3"));
}

TEST_F(AllowListTest, SaysNothingOfOneWhoIsLetInAfterItsNameIsLookedUp) {
  AllowList list = List("worker");
  list.FollowOnce();
  hosts_ = {{"worker", "10.0.0.2"}};
  EXPECT_FALSE(Allows(list, "10.0.0.2"));
  list.FollowOnce();
  list.FollowOnce();
  EXPECT_EQ(said_, std::vector<std::string>());
}

TEST_F(AllowListTest, TellsOfStrangersAfterNamesAreLookedUp) {
  hosts_ = {{"worker", "10.0.0.2"}};
  AllowList list = List("worker");
  EXPECT_FALSE(Allows(list, "10.0.0.7"));
  EXPECT_FALSE(Allows(list, "10.0.0.8"));
  EXPECT_EQ(said_, std::vector<std::string>());
  list.FollowOnce();
  ExpectRefused("10.0.0.8", " (2 connections so far)");
}

TEST_F(AllowListTest, HurriesLessAndLessAfterNamesWithoutAnAddress) {
  hosts_ = {{"ps", "10.0.0.3"}};
  AllowList list = List("ps,worker");
  EXPECT_EQ(list.FollowOnce().calm, seconds(1));  // ps is new
  EXPECT_FALSE(Allows(list, "10.0.0.2"));
  for (int pause : {2, 4, 8}) {
    EXPECT_EQ(list.FollowOnce().calm, seconds(pause));
  }
  EXPECT_EQ(said_, std::vector<std::string>());
  EXPECT_EQ(list.FollowOnce().calm, seconds(15));
  ExpectRefused("10.0.0.2", "; worker has no address");
  hosts_["worker"] = "10.0.0.2";
  EXPECT_EQ(list.FollowOnce().calm, seconds(60));
  EXPECT_EQ(list.FollowOnce().hurried, seconds(2));
}

}  // namespace

// A connection from a new address makes the thread look up names at once, and
// not a minute later.
TEST(AllowListFollowTest, LooksUpNamesWhenAStrangerComes) {
  // These are shared by the whole process, as the thread is.
  static std::mutex mu;
  static std::string host = "10.0.0.2";
  static bool is_first = true;
  static auto& list = *new AllowList(
      "worker",
      [](const std::string&) {
        const std::lock_guard<std::mutex> lock(mu);
        // The first time there is no memory.
        if (std::exchange(is_first, false)) {
          throw std::bad_alloc();
        }
        return std::vector<Network>{Address(host)};
      },
      [](const std::string&) {});
  std::thread([] { list.Follow(); }).detach();
  const auto wait_for = [](const std::string& peer) {
    const auto begin = std::chrono::steady_clock::now();
    while (!list.Allows(Address(peer), Own(), kPort)) {
      ASSERT_LT(std::chrono::steady_clock::now() - begin, kDeadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  wait_for("10.0.0.2");
  {
    const std::lock_guard<std::mutex> lock(mu);
    host = "10.0.0.3";
  }
  wait_for("10.0.0.3");
}

}  // namespace tf_syncrep
