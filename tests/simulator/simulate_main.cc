// simulate: runs schedules, and shows the first failing one as small as
// possible.
//
//   simulate --seeds=FIRST:COUNT   the schedules of these seeds
//   simulate --seed=N              one of them, told event by event
//   simulate --schedule=FILE       one from a file, told event by event
//
// Further options: --seconds=S ends after S seconds; --digest prints a digest
// that differs from one run to another. The status is 1 if a schedule failed.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/simulator/run.h"
#include "tests/simulator/schedule.h"
#include "tests/simulator/shrink.h"

namespace {

using tf_syncrep::simulator::Outcome;

void Print(const std::string& line) { std::printf("%s\n", line.c_str()); }

void Show(uint64_t seed, const Outcome& failed) {
  std::printf("seed %llu fails: %s\n", static_cast<unsigned long long>(seed),
              failed.failure.c_str());
  std::fflush(stdout);
  const Outcome shrunk = tf_syncrep::simulator::Shrink(failed);
  const long long num_events = tf_syncrep::simulator::NumEvents(shrunk);
  std::printf("shrunk to %lld events: %s\n", num_events,
              shrunk.failure.c_str());
  std::printf("==== the schedule\n%s",
              Text(shrunk.is_stuck() ? shrunk.scheduled : shrunk.all).c_str());
  std::printf("==== told event by event\n");
  // If somebody is stuck, the trace goes on for long.
  int lines = 0;
  RunSchedule(shrunk.scheduled, [&lines](const std::string& line) {
    if (++lines <= 100) {
      Print(line);
    }
  });
}

int RunSeeds(uint64_t first, uint64_t count, double seconds, bool digest) {
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  };
  uint64_t num_run = 0;
  uint64_t num_events = 0;
  uint64_t num_updates = 0;
  uint64_t all = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (seconds > 0 && elapsed() > seconds) {
      break;
    }
    const Outcome outcome = tf_syncrep::simulator::RunSeed(seed);
    ++num_run;
    if (!outcome.failure.empty()) {
      std::printf("after %llu schedules\n",
                  static_cast<unsigned long long>(num_run));
      Show(seed, outcome);
      return 1;
    }
    num_events += outcome.all.events.size();
    num_updates += outcome.updates;
    all = (all ^ outcome.digest) * 0x100000001b3;
  }
  std::printf("%llu schedules, %llu events, %llu updates in %.1f s: all well\n",
              static_cast<unsigned long long>(num_run),
              static_cast<unsigned long long>(num_events),
              static_cast<unsigned long long>(num_updates), elapsed());
  if (digest) {
    std::printf("digest %016llx\n", static_cast<unsigned long long>(all));
  }
  return 0;
}

int Tell(const Outcome& outcome) {
  if (outcome.failure.empty()) {
    Print("all well");
    return 0;
  }
  Print("fails: " + outcome.failure);
  return 1;
}

int RunFile(const std::string& name) {
  std::ifstream file(name);
  std::stringstream text;
  text << file.rdbuf();
  tf_syncrep::simulator::Schedule schedule;
  std::string error;
  if (!file || !tf_syncrep::simulator::Parse(text.str(), &schedule, &error)) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(),
                 file ? error.c_str() : "cannot be read");
    return 2;
  }
  return Tell(RunSchedule(schedule, Print));
}

// The value of an option, if `argument` is it.
bool Option(const std::string& argument, const std::string& name,
            std::string* value) {
  if (argument.rfind("--" + name + "=", 0) != 0) {
    return false;
  }
  *value = argument.substr(name.size() + 3);
  return true;
}

bool ToNumber(const std::string& text, uint64_t* number) {
  std::istringstream in(text);
  return static_cast<bool>(in >> *number) && in.eof();
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t first = 0;
  uint64_t count = 10'000;
  double seconds = 0;
  bool digest = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    std::string value;
    if (Option(argument, "schedule", &value)) {
      return RunFile(value);
    }
    bool is_good = true;
    if (Option(argument, "seed", &value)) {
      is_good = ToNumber(value, &first);
      if (is_good) {
        return Tell(tf_syncrep::simulator::RunSeed(first, Print));
      }
    } else if (Option(argument, "seeds", &value)) {
      const size_t colon = value.find(':');
      is_good = ToNumber(value.substr(0, colon),
                         colon == std::string::npos ? &count : &first) &&
                (colon == std::string::npos ||
                 ToNumber(value.substr(colon + 1), &count));
    } else if (Option(argument, "seconds", &value)) {
      std::istringstream in(value);
      is_good = static_cast<bool>(in >> seconds);
    } else if (argument == "--digest") {
      digest = true;
    } else {
      is_good = false;
    }
    if (!is_good) {
      std::fprintf(stderr, "not an option: %s\n", argument.c_str());
      return 2;
    }
  }
  return RunSeeds(first, count, seconds, digest);
}
