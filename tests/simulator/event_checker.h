// The rules of the ledger, checked on the events that a gate tells its
// observer, both in the simulator and in the logs of real clusters.

#ifndef TESTS_SIMULATOR_EVENT_CHECKER_H_
#define TESTS_SIMULATOR_EVENT_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tf_syncrep/cc/lib/gate/gate_types.h"

namespace tf_syncrep::simulator {

// Follows one gate by its events, in their order.
//
//   - Generations and rounds count up; each round ends once, by an update or a
//     void.
//   - Permits and contributions are of the present round of a training that has
//     not ended, one for each worker at a time; permits have numbers of their
//     own.
//   - Only what is in flight is committed. An update applies what is committed,
//     with nothing in flight, and a void discards it.
//   - A round is void because of somebody who was in flight, or of an opening.
class EventChecker {
 public:
  void See(const GateEvent& event);

  // The first rule that was broken; empty if there is none.
  const std::string& error() const { return error_; }
  int64_t num_events() const { return num_events_; }
  int64_t num_updates() const { return num_updates_; }
  int64_t num_voids() const { return num_voids_; }

 private:
  void Expect(bool holds, const char* rule, const GateEvent& event);
  void SeeOpened(const GateEvent& event);
  void SeeEndOfRound(const GateEvent& event);
  void SeeOfWorker(const GateEvent& event);

  std::string error_;
  int64_t num_events_ = 0;
  int64_t num_updates_ = 0;
  int64_t num_voids_ = 0;
  bool is_open_ = false;
  bool must_open_ = false;  // the last round is void because of an opening
  int64_t generation_ = 0;
  int64_t round_ = 0;
  std::set<int64_t> numbers_;
  // Incarnations by device. After a restart, events about what is given up name
  // the new incarnation.
  std::map<std::string, uint64_t> permits_;
  std::map<std::string, uint64_t> in_flight_;
  int64_t committed_ = 0;
};

// Parses a line of a GateEventLog(). False with a message if it is no such
// line.
bool ParseEvent(const std::string& line, GateEvent* event, std::string* error);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_EVENT_CHECKER_H_
