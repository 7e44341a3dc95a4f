// LeaseTimer: it polls in time, and nothing holds up the thread that drops it.

#include "tf_syncrep/cc/lib/lease_timer.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <utility>

#include "gtest/gtest.h"

// Replaces the system's function in the whole program.
std::atomic<bool> no_threads{false};
extern "C" int pthread_create(pthread_t* thread,
                              const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
  using Create = decltype(&pthread_create);
  static const auto create =
      reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return no_threads ? EAGAIN : create(thread, attributes, run, argument);
}

namespace tf_syncrep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kDeadline(60);

// Notes the two calls, and its own end.
struct Ledger {
  ~Ledger() { gone.set_value(); }

  LeaseTimer::Time Poll() {
    if (on_poll != nullptr) {
      std::exchange(on_poll, nullptr)();
    }
    return LeaseTimer::SteadyTime() + pause;
  }

  void Shutdown() {
    if (on_shutdown != nullptr) {
      std::exchange(on_shutdown, nullptr)();
    }
    shut_down.set_value();
  }

  std::function<void()> on_poll;      // the first one
  std::function<void()> on_shutdown;  // the same
  LeaseTimer::Time pause = seconds(1000);
  std::promise<void> shut_down;  // a second value would be an exception
  std::promise<void> gone;
};

bool Happens(std::future<void>& event) {
  return event.wait_for(kDeadline) == std::future_status::ready;
}

TEST(LeaseTimerTest, ThreadThatSleepsIsWokenShutsDownAndLetsGo) {
  auto ledger = std::make_shared<Ledger>();
  auto shut_down = ledger->shut_down.get_future();
  auto gone = ledger->gone.get_future();
  std::promise<void> polled;
  auto first_poll = polled.get_future();
  ledger->on_poll = [&] { polled.set_value(); };
  auto timer = std::make_unique<LeaseTimer>(ledger, seconds(1000));
  ledger.reset();
  ASSERT_TRUE(Happens(first_poll));
  EXPECT_EQ(shut_down.wait_for(seconds(0)), std::future_status::timeout);
  timer.reset();
  EXPECT_TRUE(Happens(shut_down));
  EXPECT_TRUE(Happens(gone));
}

TEST(LeaseTimerTest, ABellThatRingsDuringAPollIsHeard) {
  const auto ledger = std::make_shared<Ledger>();
  const auto bell = std::make_shared<LeaseTimer::Bell>();
  std::promise<void> polled;
  auto second_poll = polled.get_future();
  ledger->on_poll = [&] {
    ledger->on_poll = [&] { polled.set_value(); };
    bell->Ring();
  };
  auto shut_down = ledger->shut_down.get_future();
  auto timer = std::make_unique<LeaseTimer>(ledger, seconds(1000), bell);
  EXPECT_TRUE(Happens(second_poll));
  timer.reset();
  EXPECT_TRUE(Happens(shut_down));
}

TEST(LeaseTimerTest, WhatThereWasNoMemoryForIsTriedAgain) {
  const auto ledger = std::make_shared<Ledger>();
  std::promise<void> polled;
  auto second_poll = polled.get_future();
  ledger->on_poll = [&] {
    ledger->on_poll = [&] { polled.set_value(); };
    throw std::bad_alloc();
  };
  ledger->on_shutdown = [] { throw std::bad_alloc(); };
  auto shut_down = ledger->shut_down.get_future();
  auto timer = std::make_unique<LeaseTimer>(ledger, seconds(1000));
  EXPECT_TRUE(Happens(second_poll));
  timer.reset();
  EXPECT_TRUE(Happens(shut_down));
}

TEST(LeaseTimerTest, ItIsDroppedInItsOwnThread) {
  auto ledger = std::make_shared<Ledger>();
  auto gone = ledger->gone.get_future();
  std::promise<std::unique_ptr<LeaseTimer>> made;
  // This is what the callback of a wait does that held the last reference.
  ledger->on_poll = [timer = made.get_future().share()] {
    const_cast<std::unique_ptr<LeaseTimer>&>(timer.get()).reset();
  };
  made.set_value(std::make_unique<LeaseTimer>(ledger, milliseconds(1)));
  ledger.reset();
  EXPECT_TRUE(Happens(gone));
}

TEST(LeaseTimerTest, WhoDropsItWaitsForNoCallback) {
  auto ledger = std::make_shared<Ledger>();
  auto shut_down = ledger->shut_down.get_future();
  std::promise<void> in_poll;
  std::promise<void> dropped;
  auto is_in_poll = in_poll.get_future();
  // The callback needs what the other thread holds.
  ledger->on_poll = [&, is_dropped = dropped.get_future().share()] {
    in_poll.set_value();
    EXPECT_EQ(is_dropped.wait_for(kDeadline), std::future_status::ready);
  };
  auto timer = std::make_unique<LeaseTimer>(ledger, milliseconds(1));
  ASSERT_TRUE(Happens(is_in_poll));
  timer.reset();
  dropped.set_value();
  EXPECT_TRUE(Happens(shut_down));
}

TEST(LeaseTimerTest, WithoutAThreadItSaysSoAndLetsGo) {
  auto ledger = std::make_shared<Ledger>();
  auto gone = ledger->gone.get_future();
  no_threads = true;
  const LeaseTimer timer(ledger, milliseconds(1));
  no_threads = false;
  EXPECT_FALSE(timer.is_running());
  ledger.reset();
  EXPECT_TRUE(Happens(gone));
}

}  // namespace
}  // namespace tf_syncrep
