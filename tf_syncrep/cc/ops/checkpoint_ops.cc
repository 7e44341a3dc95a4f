// Declares the Checkpoint ops: attributes, shapes, documentation. `handle` is
// always that of the writer.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/common_shapes.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;
using tensorflow::shape_inference::ScalarShape;

absl::Status ProgressOutputs(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ScalarOutputs(c));
  c->set_output(6, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

// What all ops that read or write have, behind the variables.
#define TF_SYNCREP_TABLES()                   \
  .Input("group_sizes: int64")                \
      .Input("pieces: int64")                 \
      .Input("piece_names: string")           \
      .Input("wholes: num_wholes * resource") \
      .Input("whole_names: string")           \
      .Attr("num_wholes: int >= 0")

// And those that begin to write.
#define TF_SYNCREP_WRITES()                    \
  .Input("tensors: dtypes")                    \
      .Input("tensor_names: string")           \
      .Attr("dtypes: list(type) >= 0")         \
      .Attr("max_kept_bytes: int = 268435456") \
      .Attr("patience_secs: float = 60.0")     \
      .Attr("max_bytes_per_sec: float = 0.0")

REGISTER_OP("Syncrep>CheckpointWriter")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("counted: bool = false")
    .Output("handle: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Makes the writer of a task's share of checkpoints, or finds it by its name.

container, shared_name, counted: As in SyncGate.
)doc");

REGISTER_OP("Syncrep>CheckpointBegin")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("token: string")
    .Input("base: string")
    .Input("variables: num_variables * resource") TF_SYNCREP_TABLES()
        TF_SYNCREP_WRITES()
    .Attr("num_variables: int >= 0")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Begins to write a task's share of a checkpoint, which shows this moment.

A thread continues the writing. Rows that are overwritten meanwhile are written with
their present values if CheckpointKeep is called for them first. The op fails as
FailedPrecondition if another checkpoint is being written, or `base` is not the last
one, and as InvalidArgument if the pieces do not cover their groups, or the variables
do not form a group.

prefix: The prefix of the files, which have TensorFlow's bundle format.
token: The name of this checkpoint, for a later one that holds only changes; it is
  empty if there will be none.
base: The token of the last checkpoint if this one is to hold only what has changed
  since; it is empty if this one is to hold all.
variables: Groups of variables with equally many rows: a table and its slots.
group_sizes: How many variables each group has.
pieces: The pieces of tables in the rows of the groups, in order, with six numbers
  each: the group, the number of rows, `first`, `stride`, the number of rows of the
  table, and `uses`. Row k of a piece is row first + k * stride of its table. If the
  table grows, `uses` is the variable of the group that has the uses of its rows, of
  type int32 and shape [rows, 2], where the second number of a free row is 0;
  otherwise it is -1. Free rows are omitted from full checkpoints, too, which have the
  other rows in the form of checkpoints of changes.
piece_names: For each piece a name for each variable of its group.
wholes: Variables that are copied at once.
whole_names: The names of these variables.
tensors: Other tensors that are saved.
tensor_names: The names of these tensors.
max_kept_bytes: How many bytes of rows may be kept that were overwritten before they
  were written; then updates wait.
patience_secs: How long updates wait for files that make no progress, until this
  checkpoint is given up.
max_bytes_per_sec: A limit to the speed of writing; 0 for no limit.
)doc");

REGISTER_OP("Syncrep>RefCheckpointBegin")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("token: string")
    .Input("base: string")
    .Input("variables: num_variables * resource")
    .Input("references: Ref(reference_dtypes)") TF_SYNCREP_TABLES()
        TF_SYNCREP_WRITES()
    .Attr("num_variables: int >= 0")
    .Attr("reference_dtypes: list(type) >= 0")
    .Attr("owner: string = ''")
    .SetIsStateful()
    .SetAllowsUninitializedInput()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Accepts the inputs of CheckpointBegin, with reference variables after the others.

The op sets the moment of the checkpoint. Nothing is written until CheckpointWrite runs.
All inputs and attributes that CheckpointBegin has, too, are described there, but
`tensors` are copied here.

references: Reference variables, which follow `variables` in the groups.
owner: The name of the owner of these checkpoints, if the variables outlive it. Writers of
  this task forget what they remember of the variables for another owner.
)doc");

REGISTER_OP("Syncrep>CheckpointWrite")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Writes the checkpoint that RefCheckpointBegin has accepted, and runs until it is written.

Only a running step can hold reference variables. If the step is cancelled, for example
because its session is closed, the checkpoint is given up. The op does not fail if files
cannot be written: CheckpointProgress returns that error. It fails as FailedPrecondition
if no checkpoint was accepted.

)doc");

REGISTER_OP("Syncrep>CheckpointProgress")
    .Input("handle: resource")
    .Output("done: bool")
    .Output("code: int64")
    .Output("message: string")
    .Output("bytes: int64")
    .Output("rows: int64")
    .Output("kept_bytes: int64")
    .Output("not_finite: string")
    .SetIsStateful()
    .SetShapeFn(ProgressOutputs)
    .Doc(R"doc(
Returns how far the writing of a checkpoint has got.

done: Whether nothing is being written.
code: 0, or the status code of the error.
message: The message of the error.
bytes: How many bytes were written.
rows: How many rows of tables were written.
kept_bytes: The most bytes of rows that were kept at one time.
not_finite: The names of what has a NaN or an infinity, as far as it was written:
  variables that are written at once, and tables, without their slots.
)doc");

REGISTER_OP("Syncrep>CheckpointCancel")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Ends the writing of a checkpoint, and waits until it has ended.

The writer then forgets the last checkpoint, which takes 8 bytes for each row: the next
one will be full. The op fails as DeadlineExceeded if the files make no progress for 10
seconds, or for `patience_secs` of the checkpoint if that is less.

)doc");

REGISTER_OP("Syncrep>CheckpointKeep")
    .Input("variable: resource")
    .Input("rows: T")
    .Attr("T: {int32, int64}")
    .Attr("all: bool = false")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Keeps rows of a table and its slots for a checkpoint that is being written.

It runs before the rows are overwritten, and does nothing if there is no such checkpoint.

variable: The table, as the first variable of its group.
rows: Numbers of rows, of any shape.
all: Whether to keep all rows, instead of those in `rows`.
)doc");

REGISTER_OP("Syncrep>RefCheckpointKeep")
    .Input("variable: Ref(dtype)")
    .Input("rows: T")
    .Attr("dtype: type")
    .Attr("T: {int32, int64}")
    .Attr("all: bool = false")
    .SetIsStateful()
    .SetAllowsUninitializedInput()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Does the same as CheckpointKeep, whose inputs it has, with a reference variable.
)doc");

REGISTER_OP("Syncrep>CheckpointRestore")
    .Input("prefixes: string")
    .Input("variables: num_variables * resource") TF_SYNCREP_TABLES()
    .Input("stored_rows: int64")
    .Output("bytes: int64")
    .Attr("num_variables: int >= 0")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Reads a task's share of a checkpoint, however many tasks have written it.

The op fails as InvalidArgument if a variable has another shape or dtype in the
checkpoint, as NotFound if a variable is not in it, and as FailedPrecondition if an
array of a group is not initialized or has fewer or more rows than the first; nothing
was written then. It fails as DataLoss if a file is damaged; variables may have been
written then.
The other inputs are those of CheckpointBegin; `wholes` are read from the last file.

prefixes: The prefixes of the files: of a full checkpoint, then of those that hold the
  later changes, in order.
stored_rows: Empty if all is in the checkpoint as it is here. Otherwise, for each piece,
  how many rows its table has there. Those that both have are read, from one floating
  dtype into another, too. An array whose name is empty stays as it is, and so does a
  piece whose first name is empty.
bytes: How many bytes were read.
)doc");

REGISTER_OP("Syncrep>RefCheckpointRestore")
    .Input("prefixes: string")
    .Input("variables: num_variables * resource")
    .Input("references: Ref(reference_dtypes)") TF_SYNCREP_TABLES()
    .Input("stored_rows: int64")
    .Output("bytes: int64")
    .Attr("num_variables: int >= 0")
    .Attr("reference_dtypes: list(type) >= 0")
    .SetIsStateful()
    .SetAllowsUninitializedInput()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Does the same as CheckpointRestore, whose inputs it has, with reference variables, too.

references: Reference variables, which follow `variables` in the groups.
)doc");

#undef TF_SYNCREP_WRITES
#undef TF_SYNCREP_TABLES

}  // namespace
}  // namespace tf_syncrep
