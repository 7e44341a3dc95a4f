#include "tests/simulator/event_checker.h"

#include <array>
#include <cstddef>
#include <sstream>

#include "tf_syncrep/cc/lib/gate/gate_event_log.h"

namespace tf_syncrep::simulator {
namespace {

using Kind = GateEvent::Kind;

bool ParseField(const std::string& name, const std::string& value,
                GateEvent* event) {
  if (name == "device") {
    event->device = value;
    return true;
  }
  std::istringstream in(value);
  if (name == "incarnation") {
    return static_cast<bool>(in >> event->incarnation);
  }
  int64_t number = 0;
  if (!(in >> number)) {
    return false;
  }
  if (name == "generation") {
    event->generation = number;
  } else if (name == "round") {
    event->round = number;
  } else if (name == "value") {
    event->value = number;
  } else {
    return false;
  }
  return true;
}

bool ParseKind(const std::string& name, GateEvent::Kind* kind) {
  for (int i = 0; i <= static_cast<int>(Kind::kEnded); ++i) {
    GateEvent event;
    event.kind = static_cast<Kind>(i);
    const std::string line = ToLine(event);
    if (line.substr(0, line.find(' ')) == name) {
      *kind = event.kind;
      return true;
    }
  }
  return false;
}

}  // namespace

void EventChecker::See(const GateEvent& event) {
  ++num_events_;
  Expect(!must_open_ || event.kind == Kind::kOpened,
         "a round is void because of somebody, or of an opening", event);
  must_open_ = false;
  if (event.kind == Kind::kOpened) {
    SeeOpened(event);
    return;
  }
  Expect(event.generation == generation_ || event.kind == Kind::kEnded,
         "an event is of the present generation", event);
  if (generation_ > 0) {
    Expect(event.round == round_, "an event is of the present round", event);
  }
  switch (event.kind) {
    case Kind::kVoid:
    case Kind::kAdvanced:
      SeeEndOfRound(event);
      break;
    case Kind::kEnded:
      is_open_ = false;
      break;
    default:
      SeeOfWorker(event);
      break;
  }
}

void EventChecker::SeeOpened(const GateEvent& event) {
  Expect(event.generation > generation_, "generations count up", event);
  Expect(in_flight_.empty() && committed_ == 0,
         "what another generation left is void", event);
  Expect(generation_ == 0 || event.round >= round_, "rounds count up", event);
  generation_ = event.generation;
  round_ = event.round;
  is_open_ = true;
  permits_.clear();
}

void EventChecker::SeeEndOfRound(const GateEvent& event) {
  Expect(event.value == committed_,
         "a round ends with the gradients that are committed", event);
  if (event.kind == Kind::kAdvanced) {
    Expect(in_flight_.empty() && committed_ > 0,
           "an update has gradients, and none is in flight", event);
    ++num_updates_;
  } else {
    // Or its updater was told to stop after it had flushed it.
    must_open_ = event.message.find("generation") != std::string::npos;
    Expect(event.device.empty() || in_flight_.count(event.device) > 0,
           "a round is void because of somebody who was in flight", event);
    ++num_voids_;
  }
  permits_.clear();
  in_flight_.clear();
  committed_ = 0;
  ++round_;
}

void EventChecker::SeeOfWorker(const GateEvent& event) {
  const std::string& name = event.device;
  switch (event.kind) {
    case Kind::kPermitted:
    case Kind::kSpare:
      Expect(is_open_, "nobody is permitted after the end", event);
      Expect(permits_.count(name) + in_flight_.count(name) == 0,
             "who is permitted holds nothing", event);
      Expect(numbers_.insert(event.value).second,
             "each permit has a number of its own", event);
      permits_[name] = event.incarnation;
      break;
    case Kind::kReleased:
      Expect(permits_.erase(name) == 1, "a permit is given up once", event);
      break;
    case Kind::kAdmitted:
      Expect(is_open_, "nobody is admitted after the end", event);
      permits_.erase(name);
      Expect(in_flight_.emplace(name, event.incarnation).second,
             "nobody is admitted while it pushes", event);
      break;
    case Kind::kLate:
    case Kind::kRejected:
      permits_.erase(name);
      break;
    case Kind::kCommitted:
      Expect(
          in_flight_.count(name) == 1 && in_flight_[name] == event.incarnation,
          "what is committed was admitted in the same round", event);
      in_flight_.erase(name);
      ++committed_;
      break;
    case Kind::kExpired:
      Expect(permits_.count(name) + in_flight_.count(name) == 1,
             "a lease ends for somebody who holds something", event);
      break;
    default:
      break;
  }
}

void EventChecker::Expect(bool holds, const char* rule,
                          const GateEvent& event) {
  if (!holds && error_.empty()) {
    error_ = std::string(rule) + "\n  at event " + std::to_string(num_events_) +
             ": " + ToLine(event) + "\n  with generation " +
             std::to_string(generation_) + ", round " + std::to_string(round_) +
             ", " + std::to_string(permits_.size()) + " permitted, " +
             std::to_string(in_flight_.size()) + " in flight, " +
             std::to_string(committed_) + " committed";
  }
}

bool ParseEvent(const std::string& line, GateEvent* event, std::string* error) {
  *event = {};
  const size_t message = line.find(" message=");
  std::istringstream words(line.substr(0, message));
  std::string word;
  bool is_good = words >> word && ParseKind(word, &event->kind);
  while (is_good && words >> word) {
    const size_t sign = word.find('=');
    is_good = sign != std::string::npos &&
              ParseField(word.substr(0, sign), word.substr(sign + 1), event);
  }
  if (message != std::string::npos) {
    event->message = line.substr(message + 9);
  }
  if (!is_good) {
    *error = "not an event of a gate: " + line;
  }
  return is_good;
}

}  // namespace tf_syncrep::simulator
