// The gate, wherever it is.

#ifndef TESTS_SIMULATOR_GATE_HEADER_H_
#define TESTS_SIMULATOR_GATE_HEADER_H_

#if __has_include("tf_syncrep/cc/lib/gate/sync_gate.h")
#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#else
#include "tf_syncrep/cc/lib/sync_gate.h"
#endif

#endif  // TESTS_SIMULATOR_GATE_HEADER_H_
