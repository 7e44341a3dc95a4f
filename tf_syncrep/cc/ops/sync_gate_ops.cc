// Declares the SyncGate ops: the protocol of synchronous training, call by
// call. `handle` is always that of the gate.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/common_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// All inputs and outputs are scalars.
absl::Status ScalarShapes(InferenceContext* c) {
  ShapeHandle unused;
  for (int i = 0; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  return ScalarOutputs(c);
}

absl::Status StatsShapes(InferenceContext* c) {
  TF_RETURN_IF_ERROR(VectorOutputs(c));
  c->set_output(4, c->UnknownShapeOfRank(2));
  return absl::OkStatus();
}

REGISTER_OP("Syncrep>SyncGate")
    .Attr("quorum: int >= 1")
    .Attr("total: int >= 1")
    .Attr("lease_secs: float = 60.0")
    .Attr("start_secs: float = 600.0")
    .Attr("updater_lease_secs: float = 0.0")
    .Attr("strict: bool = true")
    .Attr("spares: bool = true")
    .Attr("gathers: bool = false")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("counted: bool = false")
    .Output("handle: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Makes, or finds by its shared name, the gate of one synchronous training.

A gate decides which worker may compute, whose gradients count, and when a step is
over. The op fails as InvalidArgument if an attribute is out of range, or if a gate of
this name has another strict, spares, gathers or updater_lease_secs. The other
attributes do not change an existing gate, but SyncGateOpen may.

quorum: How many gradients make up an update.
total: How many workers take part; those above the quorum are backups.
lease_secs: How long a worker may be silent; waiting is not silence. A worker that has
  come back from a longer silence may be silent for twice as long as that, but at most
  for twice start_secs.
start_secs: The same before a worker's first gradient. Once as many workers have given
  their first gradient as are computing theirs, the time is four times the longest of
  those first steps, but no less than lease_secs and no more than start_secs.
updater_lease_secs: How long the updater may be silent before all waits fail; zero
  means for ever.
strict: Whether each live worker gives its share, ceil(quorum / live), and no more;
  otherwise fast workers give more.
spares: Whether, if not strict, an idle worker gets a spare beside a permit that is
  overdue, and a push that takes much longer than others voids its round.
gathers: Whether, if not strict, each worker gives its share and no more until all
  workers have been heard of, for at most lease_secs from the opening.
shared_name: The gate's name on its task.
counted: Whether the gate lives as long as the handles that the op returns on its task,
  instead of as long as the task. Without a shared name each call then makes a new one.
)doc");

REGISTER_OP("Syncrep>TaskId")
    .Output("device: string")
    .Output("incarnation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Returns the name by which the gate knows the task that the op runs on.

device: Job, replica and task.
incarnation: The number that the task's CPU device drew when its server started.
)doc");

REGISTER_OP("Syncrep>SyncGateOpen")
    .Input("handle: resource")
    .Input("step: int64")
    .Attr("quorum: int >= 0 = 0")
    .Attr("total: int >= 0 = 0")
    .Attr("lease_secs: float = 0.0")
    .Attr("start_secs: float = 0.0")
    .Output("generation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Starts a generation. What the last one left is void, and the waits of its updater end
as Aborted. Workers that wait go on waiting, for a permit of the new generation.

The op fails as InvalidArgument if a lease is negative.

step: The global step.
generation: The number of the new generation.
quorum: How many gradients make up an update from now on. Zero, here and below, leaves
  the value as it was.
total: How many workers take part.
lease_secs: How long a worker may be silent.
start_secs: The same before a worker's first gradient; see SyncGate.
)doc");

REGISTER_OP("Syncrep>SyncGateAddPasses")
    .Input("handle: resource")
    .Input("num_passes: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Adds passes with the present step: an acquire that finds a pass does not wait.

num_passes: How many passes; none if negative.
)doc");

REGISTER_OP("Syncrep>SyncGateAcquire")
    .Input("handle: resource")
    .Input("device: string")
    .Input("incarnation: int64")
    .Attr("first: bool = false")
    .Attr("quorum: int >= 0 = 0")
    .Attr("total: int >= 0 = 0")
    .Output("generation: int64")
    .Output("round: int64")
    .Output("step: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Waits until the round needs a gradient from this worker.

It runs before the worker reads variables. A worker does one thing at a time: it gives
up what it still holds, for example from a step that was given up and is run again. The
op fails as OutOfRange if the gate is closed, as Aborted if another acquire of the same
task, or another incarnation of it, took this one's place, and as InvalidArgument if the
gate is open with another quorum or total.

device: The worker's task, as TaskId returns it, or any other name that no other worker
  has.
incarnation: Its incarnation. It is refused if another one has followed it.
first: Whether this is the start of a session. Then the call takes no pass, and succeeds
  on a closed gate. But a worker that took no part in the closed training, or has heard
  of its end, first waits start_secs for the next open.
quorum: The quorum that the worker expects, or zero for any. If a worker at the start of
  a session finds the gate open with another one, it waits lease_secs for a chief that
  opens it with this one.
total: The number of workers that the worker expects, likewise.
generation: The generation, for the worker's next calls.
round: The round, for the worker's next calls.
step: The global step of the round.
)doc");

REGISTER_OP("Syncrep>SyncGateAdmit")
    .Input("handle: resource")
    .Input("generation: int64")
    .Input("round: int64")
    .Input("device: string")
    .Input("incarnation: int64")
    .Input("fit: bool")
    .Output("admitted: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Asks whether a worker may push the gradient that it computed.

The op fails as OutOfRange if the gate is closed.

generation: The generation that SyncGateAcquire returned.
round: The round that SyncGateAcquire returned.
device: The worker's task.
incarnation: Its incarnation.
fit: False if the worker itself rejects its gradient.
admitted: False if the round is over or full: nothing may be pushed.
)doc");

REGISTER_OP("Syncrep>SyncGateCommit")
    .Input("handle: resource")
    .Input("generation: int64")
    .Input("round: int64")
    .Input("device: string")
    .Input("incarnation: int64")
    .Output("counted: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Says that every push of an admitted gradient was acknowledged.

The inputs are those of SyncGateAdmit.

counted: False if the round was void by then.
)doc");

REGISTER_OP("Syncrep>SyncGateAbort")
    .Input("handle: resource")
    .Input("generation: int64")
    .Input("round: int64")
    .Input("device: string")
    .Input("incarnation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Gives up a permit, or an admitted gradient, which makes the round void.

The inputs are those of SyncGateAdmit.
)doc");

REGISTER_OP("Syncrep>SyncGateLeave")
    .Input("handle: resource")
    .Input("device: string")
    .Input("incarnation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Says that a worker takes no further part; others take over its share.

device: The worker's task.
incarnation: Its incarnation.
)doc");

REGISTER_OP("Syncrep>SyncGateWaitQuorum")
    .Input("handle: resource")
    .Input("generation: int64")
    .Attr("timeout_secs: float = 0.0")
    .Output("round: int64")
    .Output("num_gradients: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Waits until the round has its quorum of committed gradients.

The op fails as OutOfRange if the gate is closed, as DeadlineExceeded after the time-out,
and as Aborted if the generation is over.

generation: The generation that SyncGateOpen returned.
timeout_secs: The time-out; there is none if this is zero.
round: The full round.
num_gradients: How many gradients it has.
)doc");

REGISTER_OP("Syncrep>SyncGateFlush")
    .Input("handle: resource")
    .Input("generation: int64")
    .Output("round: int64")
    .Output("num_gradients: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Ends a round that will not fill, at the end of training.

The op fails as OutOfRange if the gate is closed, and as Aborted if the generation is
over.

generation: The generation that SyncGateOpen returned.
round: The round.
num_gradients: How many gradients it has. If it has none, it stays open.
)doc");

REGISTER_OP("Syncrep>SyncGateAdvance")
    .Input("handle: resource")
    .Input("generation: int64")
    .Input("round: int64")
    .Input("step: int64")
    .Output("advanced: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Ends a round whose gradients were applied, and opens the next.

The op fails as FailedPrecondition if the round is not full, and as Aborted if the
generation is over.

generation: The generation that SyncGateOpen returned.
round: The round that was applied.
step: The new global step.
advanced: False if it was not the present round any more.
)doc");

REGISTER_OP("Syncrep>SyncGateDrain")
    .Input("handle: resource")
    .Input("generation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Waits until no gradient is in flight and no full round waits for its update.

The input and the errors are those of SyncGateFlush.
)doc");

REGISTER_OP("Syncrep>SyncGateCancelUpdater")
    .Input("handle: resource")
    .Input("generation: int64")
    .Input("device: string")
    .Input("incarnation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Ends the updater's waits of a generation as Cancelled.

A worker in whose process the updater failed would wait for updates that nobody makes.
If one is named, its acquires are cancelled as well, until an updater waits for a round
again.

generation: The generation that SyncGateOpen returned.
device: That worker's task; empty if there is none.
incarnation: Its incarnation.
)doc");

REGISTER_OP("Syncrep>SyncGateConfigure")
    .Input("handle: resource")
    .Input("quorum: int64")
    .Input("total: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Changes the quorum and the number of workers from the next round on.

The op fails as InvalidArgument if a number is below 1.

quorum: How many gradients make up an update, at least 1.
total: How many workers take part, at least 1.
)doc");

REGISTER_OP("Syncrep>SyncGateClose")
    .Input("handle: resource")
    .Input("generation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Ends all waits, present and future, as end of input (OutOfRange).

generation: The generation that SyncGateOpen returned, or -1 for the present one. There
  is no effect in another generation, so that a chief cannot end its successor's
  training.
)doc");

REGISTER_OP("Syncrep>SyncGateFail")
    .Input("handle: resource")
    .Input("code: int32")
    .Input("message: string")
    .Input("generation: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc(R"doc(
Ends all waits, present and future, with an error.

The op fails as InvalidArgument if the code is out of its range.

code: A canonical status code in [1, 16].
message: The error's message.
generation: See SyncGateClose.
)doc");

REGISTER_OP("Syncrep>SyncGateStats")
    .Input("handle: resource")
    .Output("names: string")
    .Output("values: int64")
    .Output("devices: string")
    .Output("device_names: string")
    .Output("device_values: int64")
    .SetIsStateful()
    .SetShapeFn(StatsShapes)
    .Doc(R"doc(
Reads the counters of a gate.

names: The names of the counters, a vector.
values: Their values, a vector.
devices: The workers' tasks, a vector.
device_names: The names of the counters that each worker has, a vector.
device_values: Their values, a matrix with a row for each worker.
)doc");

}  // namespace
}  // namespace tf_syncrep
