// A gate's events as lines of text, for checkers.

#ifndef TF_SYNCREP_CC_LIB_GATE_GATE_EVENT_LOG_H_
#define TF_SYNCREP_CC_LIB_GATE_GATE_EVENT_LOG_H_

#include <functional>
#include <string>

#include "tf_syncrep/cc/lib/gate/gate_types.h"

namespace tf_syncrep {

// The folder into which the gates of a process write their events, if it is
// set: a file for each gate.
inline constexpr char kGateEventsVariable[] = "TF_SYNCREP_GATE_EVENTS";

// "committed generation=3 round=12 value=0 incarnation=77 device=/job:worker/
// replica:0/task:1", and what the message says after "message=", if there is
// one. A line each.
std::string ToLine(const GateEvent& event);

// An observer that writes all events of one gate into a file of its own in the
// folder that the environment names, a line at a time, so that they are there
// when the process is killed. Null if the environment names none, or the file
// cannot be made.
std::function<void(const GateEvent&)> GateEventLog();

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_GATE_EVENT_LOG_H_
