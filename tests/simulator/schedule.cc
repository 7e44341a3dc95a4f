#include "tests/simulator/schedule.h"

#include <array>
#include <cstddef>
#include <sstream>
#include <utility>

namespace tf_syncrep::simulator {
namespace {

constexpr std::array kCallNames = {
    "acquire",    "read",       "admit",   "push",      "commit", "abort",
    "leave",      "reset",      "open",    "quorum",    "flush",  "take",
    "advance",    "drain",      "stop",    "configure", "passes", "close",
    "fail",       "save",       "restore", "limit",     "item",   "maintain",
    "save_table", "load_table", "find",    "gradient"};

// What follows the name of an event.
enum class Form { kTask, kCall, kLink, kValue, kTwoValues, kNothing };

struct EventForm {
  const char* name;
  Form form;
};

constexpr std::array<EventForm, 32> kForms = {
    {{"go", Form::kTask},
     {"send", Form::kTask},
     {"deliver", Form::kCall},
     {"return", Form::kCall},
     {"pass", Form::kValue},
     {"crash", Form::kTask},
     {"restart", Form::kTask},
     {"cut", Form::kLink},
     {"heal", Form::kLink},
     {"break", Form::kLink},
     {"abort", Form::kTask},
     {"again", Form::kTask},
     {"cancel", Form::kTask},
     {"reject", Form::kTask},
     {"leave", Form::kTask},
     {"finish", Form::kNothing},
     {"flush", Form::kNothing},
     {"give_up", Form::kNothing},
     {"heartbeat", Form::kNothing},
     {"close", Form::kNothing},
     {"fail", Form::kNothing},
     {"configure", Form::kTwoValues},
     {"passes", Form::kValue},
     {"delete_gate", Form::kNothing},
     {"fail_update", Form::kNothing},
     {"save", Form::kNothing},
     {"restore_queue", Form::kNothing},
     {"limit", Form::kValue},
     {"run", Form::kCall},
     {"maintain", Form::kNothing},
     {"save_table", Form::kNothing},
     {"load_table", Form::kNothing}}};

struct SetupField {
  const char* name;
  int64_t (*get)(const Setup&);
  void (*set)(int64_t, Setup*);
};

#define TF_SYNCREP_FIELD(NAME)                                               \
  SetupField {                                                               \
    #NAME,                                                                   \
        [](const Setup& setup) { return static_cast<int64_t>(setup.NAME); }, \
        [](int64_t value, Setup* setup) {                                    \
          setup->NAME = static_cast<decltype(setup->NAME)>(value);           \
        }                                                                    \
  }

constexpr std::array kFields = {
    TF_SYNCREP_FIELD(num_workers),   TF_SYNCREP_FIELD(num_servers),
    TF_SYNCREP_FIELD(num_variables), TF_SYNCREP_FIELD(sparse),
    TF_SYNCREP_FIELD(quorum),        TF_SYNCREP_FIELD(total),
    TF_SYNCREP_FIELD(strict),        TF_SYNCREP_FIELD(gathers),
    TF_SYNCREP_FIELD(terms),         TF_SYNCREP_FIELD(lease),
    TF_SYNCREP_FIELD(start_lease),   TF_SYNCREP_FIELD(updater_lease),
    TF_SYNCREP_FIELD(timeout),       TF_SYNCREP_FIELD(heartbeats),
    TF_SYNCREP_FIELD(chief_trains),  TF_SYNCREP_FIELD(num_readers),
    TF_SYNCREP_FIELD(num_items),     TF_SYNCREP_FIELD(num_epochs),
    TF_SYNCREP_FIELD(shuffle),       TF_SYNCREP_FIELD(item_lease),
    TF_SYNCREP_FIELD(num_trainers),  TF_SYNCREP_FIELD(max_rows),
    TF_SYNCREP_FIELD(num_keys),      TF_SYNCREP_FIELD(min_count),
    TF_SYNCREP_FIELD(unused_for),    TF_SYNCREP_FIELD(least_recent)};

#undef TF_SYNCREP_FIELD

bool ParseTask(const std::string& word, Task* task) {
  if (word == "chief") {
    *task = {Task::Job::kChief, 0};
    return true;
  }
  constexpr std::array<std::pair<const char*, Task::Job>, 4> kJobs = {
      {{"ps", Task::Job::kServer},
       {"w", Task::Job::kWorker},
       {"r", Task::Job::kReader},
       {"t", Task::Job::kTrainer}}};
  for (const auto& [prefix, job] : kJobs) {
    if (word.rfind(prefix, 0) == 0) {
      std::istringstream number(word.substr(std::string(prefix).size()));
      task->job = job;
      return static_cast<bool>(number >> task->number) && task->number >= 0;
    }
  }
  return false;
}

bool ParseCall(const std::string& word, CallKind* kind) {
  for (size_t i = 0; i < kCallNames.size(); ++i) {
    if (word == kCallNames[i]) {
      *kind = static_cast<CallKind>(i);
      return true;
    }
  }
  return false;
}

bool ParseEvent(std::istringstream& words, const std::string& name,
                Event* event) {
  size_t kind = 0;
  while (kind < kForms.size() && name != kForms[kind].name) {
    ++kind;
  }
  if (kind == kForms.size()) {
    return false;
  }
  event->kind = static_cast<EventKind>(kind);
  std::string task;
  std::string other;
  switch (kForms[kind].form) {
    case Form::kTask:
      return words >> task && ParseTask(task, &event->task);
    case Form::kLink:
      return words >> task >> other && ParseTask(task, &event->task) &&
             ParseTask(other, &event->other);
    case Form::kCall: {
      std::string call;
      return words >> task >> event->life >> call >> event->variable >> other &&
             ParseTask(task, &event->task) && ParseCall(call, &event->call) &&
             ParseTask(other, &event->other);
    }
    case Form::kValue:
      return static_cast<bool>(words >> event->value);
    case Form::kTwoValues:
      return static_cast<bool>(words >> event->value >> event->other.number);
    case Form::kNothing:
      return true;
  }
  return false;
}

}  // namespace

std::string Text(const Task& task) {
  switch (task.job) {
    case Task::Job::kChief:
      return "chief";
    case Task::Job::kServer:
      return "ps" + std::to_string(task.number);
    case Task::Job::kWorker:
      return "w" + std::to_string(task.number);
    case Task::Job::kReader:
      return "r" + std::to_string(task.number);
    case Task::Job::kTrainer:
      return "t" + std::to_string(task.number);
  }
  return "";
}

std::string Text(CallKind kind) {
  return kCallNames[static_cast<size_t>(kind)];
}

std::string Text(const Event& event) {
  const EventForm& form = kForms[static_cast<size_t>(event.kind)];
  std::ostringstream out;
  out << form.name;
  switch (form.form) {
    case Form::kTask:
      out << ' ' << Text(event.task);
      break;
    case Form::kLink:
      out << ' ' << Text(event.task) << ' ' << Text(event.other);
      break;
    case Form::kCall:
      out << ' ' << Text(event.task) << ' ' << event.life << ' '
          << Text(event.call) << ' ' << event.variable << ' '
          << Text(event.other);
      break;
    case Form::kValue:
      out << ' ' << event.value;
      break;
    case Form::kTwoValues:
      out << ' ' << event.value << ' ' << event.other.number;
      break;
    case Form::kNothing:
      break;
  }
  return out.str();
}

std::string Text(const Schedule& schedule) {
  std::ostringstream out;
  out << "setup";
  for (const SetupField& field : kFields) {
    out << ' ' << field.name << '=' << field.get(schedule.setup);
  }
  out << '\n';
  for (const Event& event : schedule.events) {
    out << Text(event) << '\n';
  }
  return out.str();
}

bool Parse(const std::string& text, Schedule* schedule, std::string* error) {
  *schedule = {};
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word[0] == '#') {
      continue;
    }
    bool is_good = true;
    if (word == "setup") {
      while (is_good && words >> word) {
        const size_t sign = word.find('=');
        is_good = false;
        for (const SetupField& field : kFields) {
          if (sign != std::string::npos && word.substr(0, sign) == field.name) {
            std::istringstream value(word.substr(sign + 1));
            int64_t number = 0;
            is_good = static_cast<bool>(value >> number) && number >= 0;
            field.set(number, &schedule->setup);
          }
        }
      }
    } else {
      schedule->events.emplace_back();
      is_good = ParseEvent(words, word, &schedule->events.back());
    }
    if (!is_good) {
      *error = "not a line of a schedule: " + line;
      return false;
    }
  }
  const Setup& setup = schedule->setup;
  if (setup.num_workers < 1 || setup.num_servers < 1 ||
      setup.num_variables < 1 || setup.quorum < 1 || setup.total < 1 ||
      setup.lease < 1 || setup.start_lease < 1 || setup.num_items < 1 ||
      setup.item_lease < 1 || setup.max_rows < 1 || setup.num_keys < 1 ||
      setup.min_count < 1) {
    *error = "numbers and leases of the setup must be at least 1";
    return false;
  }
  return true;
}

}  // namespace tf_syncrep::simulator
