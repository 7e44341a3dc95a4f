#include "tests/simulator/gate_record.h"

#include <array>
#include <cstddef>
#include <sstream>

namespace tf_syncrep::simulator {
namespace {

constexpr std::array kKindNames = {
    "make",    "open",      "ask",    "grant", "refuse",  "admit",
    "commit",  "abort",     "return", "leave", "expire",  "void",
    "wait",    "flush",     "quorum", "stop",  "drained", "give_up",
    "advance", "configure", "passes", "close", "delete"};
constexpr std::array kVerdictNames = {"admitted", "late", "stale", "rejected",
                                      "ended"};

struct Field {
  const char* name;
  int64_t (*get)(const GateRecord&);
};

#define TF_SYNCREP_FIELD(NAME)                  \
  Field {                                       \
    #NAME, [](const GateRecord& record) {       \
      return static_cast<int64_t>(record.NAME); \
    }                                           \
  }

constexpr std::array kFields = {
    TF_SYNCREP_FIELD(time),       TF_SYNCREP_FIELD(incarnation),
    TF_SYNCREP_FIELD(generation), TF_SYNCREP_FIELD(round),
    TF_SYNCREP_FIELD(step),       TF_SYNCREP_FIELD(wait),
    TF_SYNCREP_FIELD(number),     TF_SYNCREP_FIELD(quorum),
    TF_SYNCREP_FIELD(total),      TF_SYNCREP_FIELD(live),
    TF_SYNCREP_FIELD(count),      TF_SYNCREP_FIELD(code),
    TF_SYNCREP_FIELD(is_first),   TF_SYNCREP_FIELD(is_fit),
    TF_SYNCREP_FIELD(is_flush),   TF_SYNCREP_FIELD(is_spare),
    TF_SYNCREP_FIELD(counts),     TF_SYNCREP_FIELD(strict)};

#undef TF_SYNCREP_FIELD

}  // namespace

std::string Text(const GateRecord& record) {
  const GateRecord plain;
  std::ostringstream out;
  out << kKindNames[static_cast<size_t>(record.kind)];
  if (!record.worker.empty()) {
    out << " worker=" << record.worker;
  }
  for (const Field& field : kFields) {
    if (field.get(record) != field.get(plain)) {
      out << ' ' << field.name << '=' << field.get(record);
    }
  }
  if (record.kind == GateRecord::Kind::kAdmit) {
    out << " verdict=" << kVerdictNames[static_cast<size_t>(record.verdict)];
  }
  return out.str();
}

}  // namespace tf_syncrep::simulator
