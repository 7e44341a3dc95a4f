// Notice: a SIGTERM is heard before it ends the process, and nobody listens for
// longer than there is somebody who wants to know. Each claim is about a
// process of its own.

#include "tf_syncrep/cc/lib/notice.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <future>
#include <thread>

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

// Sends it again, so late that it is not taken for the same.
void TerminateAgain() {
  sleep(6);
  Terminate();
}

void SetHandler() {
  std::signal(SIGTERM, [](int) { _exit(kHandled); });
}

TEST(NoticeTest, WhoListensHereDecidesWhatHappens) {
  EXPECT_EQ(StatusOf([] {
              notice().Begin();
              if (notice().IsGiven()) {
                _exit(1);
              }
              Terminate();
              if (!notice().IsGiven() || !notice().End()) {
                _exit(2);
              }
            }),
            0);
}

TEST(NoticeTest, ItIsUpToTheLastOneWhoListensHere) {
  EXPECT_EQ(StatusOf([] {
              notice().Begin();
              notice().Begin();
              Terminate();
              if (!notice().End() || !notice().IsGiven()) {
                _exit(1);
              }
              if (!notice().End() || notice().IsGiven()) {
                _exit(2);
              }
            }),
            0);
}

TEST(NoticeTest, NoSignalIsLostAsListeningEndsAndBeginsAgain) {
  EXPECT_EQ(StatusOf([] {
              static std::atomic<int> num_handled{0};
              std::signal(SIGTERM, [](int) { num_handled.fetch_add(1); });
              int num_taken = 0;
              for (int num_sent = 1; num_sent <= 200; ++num_sent) {
                std::thread sender(Terminate);
                while (num_handled.load() + num_taken < num_sent) {
                  notice().Begin();
                  num_taken += notice().End() ? 1 : 0;
                }
                sender.join();
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
              TerminateAgain();
              WaitForTheEnd();
            }),
            -SIGTERM);
}

TEST(NoticeTest, ASignalThatIsSentTwiceIsOne) {
  EXPECT_EQ(StatusOf([] {
              notice().Begin();
              Terminate();
              Terminate();
              _exit(notice().End() ? 0 : 1);
            }),
            0);
}

TEST(NoticeTest, WhoeverPutsItsHandlerBackDoesNotKeepAProcessFromItsEnd) {
  EXPECT_EQ(StatusOf([] {
              struct sigaction of_notice;
              notice().Begin();
              sigaction(SIGTERM, nullptr, &of_notice);
              notice().End();
              sigaction(SIGTERM, &of_notice, nullptr);
              notice().Begin();
              Terminate();
              TerminateAgain();
              WaitForTheEnd();
            }),
            -SIGTERM);
}

TEST(NoticeTest, AProcessEndsWhenNobodyWaitsAnyMore) {
  EXPECT_EQ(StatusOf([] {
              SetHandler();
              notice().Wait(/*until_end=*/false, [](bool) {});
              Terminate();
              WaitForTheEnd();
            }),
            kHandled);
  EXPECT_EQ(StatusOf([] {
              std::promise<void> cancelled;
              const auto wait = notice().Wait(
                  /*until_end=*/true, [&](bool) { cancelled.set_value(); });
              if (!Hear()) {
                _exit(1);
              }
              notice().Cancel(wait);
              cancelled.get_future().get();
              WaitForTheEnd();
            }),
            -SIGTERM);
}

TEST(NoticeTest, ThatThereWasOneStaysTrueOfTheProcess) {
  EXPECT_EQ(StatusOf([] {
              notice().Begin();
              const bool had = notice().WasGiven();
              Terminate();
              notice().End();
              const int of_child =
                  StatusOf([] { _exit(notice().WasGiven() ? 1 : 0); });
              _exit(!had && notice().WasGiven() ? of_child : 2);
            }),
            0);
}

TEST(NoticeTest, ItDoesNotEndWhileSomebodyWaitsForTheEnd) {
  EXPECT_EQ(StatusOf([] {
              notice().Wait(/*until_end=*/true, [](bool) {});
              if (!Hear()) {
                _exit(1);
              }
              sleep(1);  // it would end at once without that wait
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

TEST(NoticeTest, WorkThatFollowsWorkHasTheSameTime) {
  EXPECT_EQ(StatusOf([] {
              notice().BeginWork();
              Terminate();
              sleep(8);
              notice().EndWork();
              notice().BeginWork();
              sleep(5);  // beyond the time of the first, and the pause after it
            }),
            0);
}

TEST(NoticeTest, WorkThatDoesNotEndIsCutOff) {
  EXPECT_EQ(StatusOf([] {
              notice().BeginWork();
              Terminate();
              WaitForTheEnd();
            }),
            -SIGTERM);
}

TEST(NoticeTest, ChildrenAreOfThemselves) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "in a child of a process with threads, ThreadSanitizer shows "
                  "its own handler instead of the program's";
#endif
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
              notice().Begin();
              Terminate();
              if (notice().IsGiven()) {
                _exit(1);
              }
            }),
            0);
}

}  // namespace
}  // namespace tf_syncrep
