// The kernel of SyncGateStats: a gate's counters as tensors.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/sync_gate_resource.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"

namespace tf_syncrep {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

// A counter and its name.
template <typename Stats>
struct Counter {
  const char* name;
  int64_t (*value)(const Stats&);
};

#define TF_SYNCREP_COUNTER(STATS, FIELD)                              \
  Counter<STATS> {                                                    \
    #FIELD, [](const STATS& stats) -> int64_t { return stats.FIELD; } \
  }

const std::vector<Counter<SyncGateStats>>& GateCounters() {
  static const auto* const counters = new std::vector<Counter<SyncGateStats>>{
      TF_SYNCREP_COUNTER(SyncGateStats, generation),
      TF_SYNCREP_COUNTER(SyncGateStats, closed),
      TF_SYNCREP_COUNTER(SyncGateStats, round),
      TF_SYNCREP_COUNTER(SyncGateStats, step),
      TF_SYNCREP_COUNTER(SyncGateStats, quorum),
      TF_SYNCREP_COUNTER(SyncGateStats, total),
      TF_SYNCREP_COUNTER(SyncGateStats, live),
      TF_SYNCREP_COUNTER(SyncGateStats, rounds),
      TF_SYNCREP_COUNTER(SyncGateStats, updates),
      TF_SYNCREP_COUNTER(SyncGateStats, voids),
      TF_SYNCREP_COUNTER(SyncGateStats, admitted),
      TF_SYNCREP_COUNTER(SyncGateStats, committed),
      TF_SYNCREP_COUNTER(SyncGateStats, aborted),
      TF_SYNCREP_COUNTER(SyncGateStats, in_flight),
      TF_SYNCREP_COUNTER(SyncGateStats, applied),
      TF_SYNCREP_COUNTER(SyncGateStats, voided),
      TF_SYNCREP_COUNTER(SyncGateStats, pending),
      TF_SYNCREP_COUNTER(SyncGateStats, late),
      TF_SYNCREP_COUNTER(SyncGateStats, stale),
      TF_SYNCREP_COUNTER(SyncGateStats, rejected),
      TF_SYNCREP_COUNTER(SyncGateStats, expired),
      TF_SYNCREP_COUNTER(SyncGateStats, spares),
  };
  return *counters;
}

const std::vector<Counter<GateWorkerStats>>& WorkerCounters() {
  static const auto* const counters = new std::vector<Counter<GateWorkerStats>>{
      TF_SYNCREP_COUNTER(GateWorkerStats, contributed),
      TF_SYNCREP_COUNTER(GateWorkerStats, late),
      TF_SYNCREP_COUNTER(GateWorkerStats, stale),
      TF_SYNCREP_COUNTER(GateWorkerStats, rejected),
      TF_SYNCREP_COUNTER(GateWorkerStats, voided),
      TF_SYNCREP_COUNTER(GateWorkerStats, expired),
      TF_SYNCREP_COUNTER(GateWorkerStats, spares),
      {"waited_ns",
       [](const GateWorkerStats& stats) -> int64_t {
         return stats.waited.count();
       }},
      {"held_up_ns",
       [](const GateWorkerStats& stats) -> int64_t {
         return stats.held_up.count();
       }},
      TF_SYNCREP_COUNTER(GateWorkerStats, live),
      {"phase",
       [](const GateWorkerStats& stats) -> int64_t {
         return static_cast<int64_t>(stats.phase);
       }},
      {"phase_ns",
       [](const GateWorkerStats& stats) -> int64_t {
         return stats.phase_time.count();
       }},
  };
  return *counters;
}

#undef TF_SYNCREP_COUNTER

absl::Status Stats(OpKernelContext* ctx, SyncGateResource& resource) {
  const SyncGateStats stats = resource.gate()->Stats();
  const auto& counters = GateCounters();
  const auto& worker_counters = WorkerCounters();
  const int64_t num_counters = static_cast<int64_t>(counters.size());
  const int64_t num_workers = static_cast<int64_t>(stats.workers.size());
  const int64_t num_worker_counters =
      static_cast<int64_t>(worker_counters.size());
  Tensor* names;
  Tensor* values;
  Tensor* devices;
  Tensor* device_names;
  Tensor* device_values;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {num_counters}, &names));
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, {num_counters}, &values));
  TF_RETURN_IF_ERROR(ctx->allocate_output(2, {num_workers}, &devices));
  TF_RETURN_IF_ERROR(
      ctx->allocate_output(3, {num_worker_counters}, &device_names));
  TF_RETURN_IF_ERROR(ctx->allocate_output(4, {num_workers, num_worker_counters},
                                          &device_values));
  for (int64_t i = 0; i < num_counters; ++i) {
    names->vec<tstring>()(i) = counters[i].name;
    values->vec<int64_t>()(i) = counters[i].value(stats);
  }
  for (int64_t j = 0; j < num_worker_counters; ++j) {
    device_names->vec<tstring>()(j) = worker_counters[j].name;
  }
  for (int64_t i = 0; i < num_workers; ++i) {
    devices->vec<tstring>()(i) = stats.workers[i].device;
    for (int64_t j = 0; j < num_worker_counters; ++j) {
      device_values->matrix<int64_t>()(i, j) =
          worker_counters[j].value(stats.workers[i]);
    }
  }
  return absl::OkStatus();
}

using StatsOp = CallOp<SyncGateResource, Stats>;
REGISTER_KERNEL_BUILDER(Name("Syncrep>SyncGateStats").Device(DEVICE_CPU),
                        StatsOp);

}  // namespace
}  // namespace tf_syncrep
