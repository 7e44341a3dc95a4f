// The kernel of SyncGateStats: a gate's counters as tensors.

#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/counters.h"
#include "tf_syncrep/cc/kernels/sync_gate_resource.h"
#include "tf_syncrep/cc/lib/gate/sync_gate.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

Counters CountersOf(const SyncGateStats& stats) {
  return {
      {"generation", stats.generation},
      {"closed", static_cast<int64_t>(stats.closed)},
      {"round", stats.round},
      {"step", stats.step},
      {"quorum", stats.quorum},
      {"total", stats.total},
      {"live", stats.live},
      {"rounds", stats.rounds},
      {"updates", stats.updates},
      {"voids", stats.voids},
      {"admitted", stats.admitted},
      {"committed", stats.committed},
      {"aborted", stats.aborted},
      {"in_flight", stats.in_flight},
      {"applied", stats.applied},
      {"voided", stats.voided},
      {"pending", stats.pending},
      {"late", stats.late},
      {"stale", stats.stale},
      {"rejected", stats.rejected},
      {"expired", stats.expired},
      {"spares", stats.spares},
  };
}

Counters CountersOf(const GateWorkerStats& stats) {
  return {
      {"contributed", stats.contributed},
      {"late", stats.late},
      {"stale", stats.stale},
      {"rejected", stats.rejected},
      {"voided", stats.voided},
      {"expired", stats.expired},
      {"spares", stats.spares},
      {"waited_ns", stats.waited.count()},
      {"held_up_ns", stats.held_up.count()},
      {"live", static_cast<int64_t>(stats.live)},
      {"phase", static_cast<int64_t>(stats.phase)},
      {"phase_ns", stats.phase_time.count()},
  };
}

absl::Status Stats(OpKernelContext* ctx, SyncGateResource& resource) {
  const SyncGateStats stats = resource.gate()->Stats();
  const Counters of_any = CountersOf(GateWorkerStats());
  const auto num_counters = static_cast<int64_t>(of_any.size());
  const auto num_workers = static_cast<int64_t>(stats.workers.size());
  Tensor* devices;
  Tensor* names;
  Tensor* values;
  TF_RETURN_IF_ERROR(SetCounters(ctx, CountersOf(stats)));
  TF_RETURN_IF_ERROR(ctx->allocate_output(2, {num_workers}, &devices));
  TF_RETURN_IF_ERROR(ctx->allocate_output(3, {num_counters}, &names));
  TF_RETURN_IF_ERROR(
      ctx->allocate_output(4, {num_workers, num_counters}, &values));
  for (int64_t i = 0; i < num_counters; ++i) {
    Data<tstring>(*names)[i] = of_any[i].first;
  }
  auto* next = Data<int64_t>(*values);
  for (int64_t i = 0; i < num_workers; ++i) {
    Data<tstring>(*devices)[i] = stats.workers[i].device;
    for (const auto& [name, value] : CountersOf(stats.workers[i])) {
      *next++ = value;
    }
  }
  return absl::OkStatus();
}

using StatsOp = CallOp<SyncGateResource, Stats>;
REGISTER_KERNEL_BUILDER(Name("Syncrep>SyncGateStats").Device(DEVICE_CPU),
                        StatsOp);

}  // namespace
}  // namespace tf_syncrep
