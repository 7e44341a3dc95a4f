// Notice: a SIGTERM is heard before it ends the process, and nobody listens for
// longer than there is somebody who wants to know. Each claim is about a
// process of its own.

#include "tf_syncrep/cc/lib/notice.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <future>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

constexpr int kHandled = 7;

Notice& notice() { return Notice::OfProcess(); }

void Terminate() { kill(getpid(), SIGTERM); }

// Calls a function in a child; returns its status, or minus the signal that
// ended it. It exits with 0 when the function returns.
int StatusOf(const std::function<void()>& run) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    run();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Waits for notice, having sent it, and returns whether it came.
bool Hear() {
  std::promise<bool> heard;
  notice().Wait(/*until_end=*/false,
                [&](bool is_cancelled) { heard.set_value(!is_cancelled); });
  Terminate();
  return heard.get_future().get();
}

void WaitForTheEnd() {
  for (;;) {
    pause();
  }
}

void SetHandler() {
  std::signal(SIGTERM, [](int) { _exit(kHandled); });
}

TEST(NoticeTest, WhoListensHereDecidesWhatHappens) {
  EXPECT_EQ(StatusOf([] {
              if (!notice().Begin() || notice().IsGiven()) {
                _exit(1);
              }
              Terminate();
              if (!notice().IsGiven() || !notice().End()) {
                _exit(2);
              }
            }),
            0);
}

TEST(NoticeTest, NobodyIsLeftListening) {
  const auto listen = [] {
    notice().Begin();
    notice().End();
    const auto wait = notice().Wait(/*until_end=*/true, [](bool) {});
    notice().Cancel(wait);
    Terminate();
    WaitForTheEnd();
  };
  EXPECT_EQ(StatusOf(listen), -SIGTERM);
  EXPECT_EQ(StatusOf([&] {
              SetHandler();
              listen();
            }),
            kHandled);
}

TEST(NoticeTest, ASecondSignalEndsAtOnce) {
  EXPECT_EQ(StatusOf([] {
              notice().Begin();
              Terminate();
              Terminate();
              WaitForTheEnd();
            }),
            -SIGTERM);
}

TEST(NoticeTest, AProcessEndsWhenNobodyWaitsAnyMore) {
  EXPECT_EQ(StatusOf([] {
              SetHandler();
              if (!Hear()) {
                _exit(1);
              }
              WaitForTheEnd();
            }),
            kHandled);
  EXPECT_EQ(StatusOf([] {
              if (!Hear()) {
                _exit(1);
              }
              std::promise<void> cancelled;
              const auto wait = notice().Wait(
                  /*until_end=*/true, [&](bool) { cancelled.set_value(); });
              notice().Cancel(wait);
              cancelled.get_future().get();
              WaitForTheEnd();
            }),
            -SIGTERM);
}

TEST(NoticeTest, ItDoesNotEndWhileSomebodyWaitsForTheEnd) {
  EXPECT_EQ(StatusOf([] {
              if (!Hear()) {
                _exit(1);
              }
              notice().Wait(/*until_end=*/true, [](bool) {});
              sleep(4);  // this is longer than it would live without that wait
            }),
            0);
}

TEST(NoticeTest, WorkIsNotCutOff) {
  EXPECT_EQ(StatusOf([] {
              notice().BeginWork();
              Terminate();
              sleep(3);  // longer than the pause between two pieces of work
              notice().EndWork();
              notice().BeginWork();
              if (!notice().IsGiven()) {
                _exit(1);
              }
              notice().EndWork();
              WaitForTheEnd();
            }),
            -SIGTERM);
}

TEST(NoticeTest, ChildrenAreOfThemselves) {
  EXPECT_EQ(StatusOf([] {
              notice().Begin();
              _exit(StatusOf([] {
                      Terminate();
                      WaitForTheEnd();
                    }) == -SIGTERM
                        ? 0
                        : 1);
            }),
            0);
}

TEST(NoticeTest, WhatIsIgnoredIsNotHeard) {
  EXPECT_EQ(StatusOf([] {
              std::signal(SIGTERM, SIG_IGN);
              if (notice().Begin()) {
                _exit(1);
              }
              Terminate();
              if (notice().IsGiven()) {
                _exit(2);
              }
            }),
            0);
}

}  // namespace
}  // namespace tf_syncrep
