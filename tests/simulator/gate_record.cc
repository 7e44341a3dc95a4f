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
    "advance", "configure", "passes", "close", "delete",  "stats"};
constexpr std::array kVerdictNames = {"admitted", "late", "stale", "rejected",
                                      "ended"};

struct Field {
  const char* name;
  int64_t (*get)(const GateRecord&);
  void (*set)(int64_t, GateRecord*);
};

#define TF_SYNCREP_FIELD(NAME)                                       \
  Field {                                                            \
    #NAME,                                                           \
        [](const GateRecord& record) {                               \
          return static_cast<int64_t>(record.NAME);                  \
        },                                                           \
        [](int64_t value, GateRecord* record) {                      \
          record->NAME = static_cast<decltype(record->NAME)>(value); \
        }                                                            \
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
    TF_SYNCREP_FIELD(counts),     TF_SYNCREP_FIELD(strict),
    TF_SYNCREP_FIELD(gathers),    TF_SYNCREP_FIELD(rounds),
    TF_SYNCREP_FIELD(updates),    TF_SYNCREP_FIELD(voids),
    TF_SYNCREP_FIELD(admitted),   TF_SYNCREP_FIELD(committed),
    TF_SYNCREP_FIELD(aborted),    TF_SYNCREP_FIELD(in_flight),
    TF_SYNCREP_FIELD(applied),    TF_SYNCREP_FIELD(voided),
    TF_SYNCREP_FIELD(pending)};

#undef TF_SYNCREP_FIELD

template <typename Names, typename Value>
bool Find(const Names& names, const std::string& name, Value* value) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) {
      *value = static_cast<Value>(i);
      return true;
    }
  }
  return false;
}

bool ParseField(const std::string& name, const std::string& value,
                GateRecord* record) {
  if (name == "worker") {
    record->worker = value;
    return true;
  }
  if (name == "verdict") {
    return Find(kVerdictNames, value, &record->verdict);
  }
  for (const Field& field : kFields) {
    if (name == field.name) {
      std::istringstream in(value);
      int64_t number = 0;
      if (!(in >> number)) {
        return false;
      }
      field.set(number, record);
      return true;
    }
  }
  return false;
}

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

bool Parse(const std::string& line, GateRecord* record, std::string* error) {
  *record = {};
  std::istringstream words(line);
  std::string word;
  bool is_good = words >> word && Find(kKindNames, word, &record->kind);
  while (is_good && words >> word) {
    const size_t sign = word.find('=');
    is_good = sign != std::string::npos &&
              ParseField(word.substr(0, sign), word.substr(sign + 1), record);
  }
  if (!is_good) {
    *error = "not a record of a gate: " + line;
  }
  return is_good;
}

}  // namespace tf_syncrep::simulator
