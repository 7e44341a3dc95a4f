// Records of what happened at a gate, each of which is a line of text.

#ifndef TESTS_SIMULATOR_GATE_RECORD_H_
#define TESTS_SIMULATOR_GATE_RECORD_H_

#include <cstdint>
#include <string>

namespace tf_syncrep::simulator {

// The comment of a kind names the fields that it has; the others are zero.
struct GateRecord {
  enum class Kind : uint8_t {
    kMake,     // a gate: round, quorum, total, strict
    kOpen,     // generation, round (the new one), step, quorum, total
    kAsk,      // an acquire: worker, wait, is_first, quorum and total of its
               // terms
    kGrant,    // its end: worker, wait, generation, round, step, number,
               // is_spare, live
    kRefuse,   // its other end: worker, wait, code
    kAdmit,    // worker, generation, round, is_fit, verdict
    kCommit,   // worker, generation, round, counts
    kAbort,    // worker, generation, round
    kReturn,   // of a permit: worker, number
    kLeave,    // worker
    kExpire,   // worker: was silent for longer than its lease
    kVoid,     // of a round: round (the next one)
    kWait,     // the updater begins a wait for a quorum: generation
    kFlush,    // or a flush: generation
    kQuorum,   // the end of either: is_flush, generation, round, count
    kStop,     // its other end: is_flush
    kDrained,  // the end of a drain
    kGiveUp,   // the updater is told to stop: generation, and if it has failed
               // the worker in its process
    kAdvance,  // round (the next one), step
    kConfigure,  // quorum, total
    kPasses,     // count
    kClose,      // the end of training, of any kind: generation, or -1 for any
    kDelete,     // of the gate
  };
  enum class Verdict : uint8_t { kAdmitted, kLate, kStale, kRejected, kEnded };

  Kind kind = Kind::kMake;
  int64_t time = 0;  // nanoseconds
  int64_t generation = 0;
  int64_t round = 0;
  int64_t step = 0;
  std::string worker;
  uint64_t incarnation = 0;
  int64_t wait = 0;    // an acquire, from kAsk to its end
  int64_t number = 0;  // of a permit; 0: a pass, or leave to go on without one
  int64_t quorum = 0;
  int64_t total = 0;
  int64_t live = -1;  // live workers, as the gate sees them; -1 if not known
  int64_t count = 0;
  int64_t code = 0;
  Verdict verdict = Verdict::kAdmitted;
  bool is_first = false;
  bool is_fit = true;
  bool is_flush = false;
  bool is_spare = false;
  bool counts = false;
  bool strict = false;
};

// Returns for example "admit time=1200 worker=w1 incarnation=3 generation=1
// round=7 verdict=late": the kind, and the fields that differ from
// GateRecord{}.
std::string Text(const GateRecord& record);

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_GATE_RECORD_H_
