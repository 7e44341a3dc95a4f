// A gate's events as lines of text, for checkers.

#ifndef TF_SYNCREP_CC_LIB_GATE_GATE_EVENT_LOG_H_
#define TF_SYNCREP_CC_LIB_GATE_GATE_EVENT_LOG_H_

#include <functional>
#include <string>

#include "tf_syncrep/cc/lib/gate/gate_types.h"

namespace tf_syncrep {

// The environment variable that names the folder into which the gates of a
// process write their events, one file for each gate. Nothing is written if it
// is not set.
inline constexpr char kGateEventsVariable[] = "TF_SYNCREP_GATE_EVENTS";

// Returns an event as one line, "committed generation=3 round=12 value=0
// incarnation=77 device=/job:worker/replica:0/task:1", with the event's message
// after "message=" if it has one.
std::string ToLine(const GateEvent& event);

// Returns an observer that writes all events of one gate into a file of its
// own, in the folder that the environment names. It writes line by line, so
// that the events are there if the process is killed. Returns null if the
// environment names no folder, or if the file cannot be made.
std::function<void(const GateEvent&)> GateEventLog();

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_GATE_GATE_EVENT_LOG_H_
