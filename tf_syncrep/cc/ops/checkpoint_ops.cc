// Interfaces of the Checkpoint ops.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_syncrep {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;
using tensorflow::shape_inference::ScalarShape;

absl::Status ScalarOutputs(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, c->Scalar());
  }
  return absl::OkStatus();
}

REGISTER_OP("Syncrep>CheckpointWriter")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("counted: bool = false")
    .Output("handle: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Makes what writes a task's share of checkpoints, or finds it by its name.

container: Where it lives.
shared_name: Its name, by which others find it.
counted: Whether it lives as long as the handles that the op gives on its task, and
  not as long as the task. Without a shared name it is then another one each time.
handle: The writer.
)doc");

REGISTER_OP("Syncrep>CheckpointBegin")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("token: string")
    .Input("base: string")
    .Input("variables: num_variables * resource")
    .Input("group_sizes: int64")
    .Input("pieces: int64")
    .Input("piece_names: string")
    .Input("wholes: num_wholes * resource")
    .Input("whole_names: string")
    .Input("tensors: dtypes")
    .Input("tensor_names: string")
    .Attr("num_variables: int >= 0")
    .Attr("num_wholes: int >= 0")
    .Attr("dtypes: list(type) >= 0")
    .Attr("max_kept_bytes: int = 268435456")
    .Attr("patience_secs: float = 60.0")
    .Attr("max_bytes_per_sec: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Begins to write a task's share of a checkpoint, of this moment.

A thread goes on with it. Rows that are overwritten meanwhile are written as they are
now if CheckpointKeep hears of them first.

handle: The writer.
prefix: Of the files, in TensorFlow's bundle format.
token: Names this checkpoint for a later one that holds what has changed; or empty.
base: The one before, if this is to hold what has changed since; or empty.
variables: Groups of variables with equally many rows: a table and its slots.
group_sizes: How many variables each group has.
pieces: Tables, or parts of them, in the rows of groups: for each its group, how many
  rows it has, that it is part i of n, how many rows the table has, and, if it grows,
  which variable of the group has the uses of its rows, otherwise -1.
piece_names: For each piece a name for each variable of its group.
wholes: Variables that are copied at once.
whole_names: Their names.
tensors: What is to be saved as well.
tensor_names: Their names.
max_kept_bytes: How much may be kept of rows that are overwritten; then updates wait.
patience_secs: How long, if the files take nothing, before this checkpoint is given up.
max_bytes_per_sec: How fast to write; 0 for as fast as can be.
)doc");

REGISTER_OP("Syncrep>RefCheckpointBegin")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("token: string")
    .Input("base: string")
    .Input("variables: num_variables * resource")
    .Input("references: Ref(reference_dtypes)")
    .Input("group_sizes: int64")
    .Input("pieces: int64")
    .Input("piece_names: string")
    .Input("wholes: num_wholes * resource")
    .Input("whole_names: string")
    .Input("tensors: dtypes")
    .Input("tensor_names: string")
    .Attr("num_variables: int >= 0")
    .Attr("reference_dtypes: list(type) >= 0")
    .Attr("num_wholes: int >= 0")
    .Attr("dtypes: list(type) >= 0")
    .Attr("max_kept_bytes: int = 268435456")
    .Attr("patience_secs: float = 60.0")
    .Attr("max_bytes_per_sec: float = 0.0")
    .Attr("owner: string = ''")
    .SetIsStateful()
    .SetAllowsUninitializedInput()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Accepts what CheckpointBegin writes, with reference variables behind the others.

Nothing is written before CheckpointWrite.

handle: As there.
prefix: As there.
token: As there.
base: As there.
variables: As there.
references: More of them.
group_sizes: As there.
pieces: As there.
piece_names: As there.
wholes: As there.
whole_names: As there.
tensors: As there.
tensor_names: As there.
max_kept_bytes: As there.
patience_secs: As there.
max_bytes_per_sec: As there.
owner: Names who writes checkpoints of these variables, which outlive that. What writers
  of this task remember of them for another owner, for later checkpoints, they forget.
)doc");

REGISTER_OP("Syncrep>CheckpointWrite")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Writes what RefCheckpointBegin has accepted, and lasts as long as that.

Nothing but a step that runs can hold reference variables. If the step is cancelled,
as by its session when that is closed, the checkpoint is given up. It is no error of
this op if files cannot be written: CheckpointProgress tells.

handle: The writer.
)doc");

REGISTER_OP("Syncrep>CheckpointProgress")
    .Input("handle: resource")
    .Output("done: bool")
    .Output("code: int64")
    .Output("message: string")
    .Output("bytes: int64")
    .Output("rows: int64")
    .Output("kept_bytes: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Tells how far the writing of a checkpoint got.

handle: The writer.
done: Whether nothing is being written.
code: 0, or what went wrong, as a status of TensorFlow.
message: Of what went wrong.
bytes: Bytes that were written.
rows: Rows of tables that were written.
kept_bytes: Bytes of rows that were kept aside at a time, at most.
)doc");

REGISTER_OP("Syncrep>CheckpointCancel")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Ends the writing of a checkpoint, and waits until it has ended.

handle: The writer.
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

Runs before they are overwritten. Does nothing where there is no such checkpoint.

variable: The table, as the first variable of its group.
rows: Numbers of rows.
all: Whether all rows are meant instead.
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
Does as CheckpointKeep, with a reference variable.

variable: As there.
rows: As there.
all: As there.
)doc");

REGISTER_OP("Syncrep>CheckpointRestore")
    .Input("prefixes: string")
    .Input("variables: num_variables * resource")
    .Input("group_sizes: int64")
    .Input("pieces: int64")
    .Input("piece_names: string")
    .Input("wholes: num_wholes * resource")
    .Input("whole_names: string")
    .Output("bytes: int64")
    .Attr("num_variables: int >= 0")
    .Attr("num_wholes: int >= 0")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Reads a task's share of a checkpoint, however many tasks have written it.

prefixes: Of the files: a full one, and those that hold what has changed, in order.
variables: As CheckpointBegin takes them.
group_sizes: As there.
pieces: As there.
piece_names: As there.
wholes: As there; they are read from the last of the files.
whole_names: As there.
bytes: Bytes that were read.
)doc");

REGISTER_OP("Syncrep>RefCheckpointRestore")
    .Input("prefixes: string")
    .Input("variables: num_variables * resource")
    .Input("references: Ref(reference_dtypes)")
    .Input("group_sizes: int64")
    .Input("pieces: int64")
    .Input("piece_names: string")
    .Input("wholes: num_wholes * resource")
    .Input("whole_names: string")
    .Output("bytes: int64")
    .Attr("num_variables: int >= 0")
    .Attr("reference_dtypes: list(type) >= 0")
    .Attr("num_wholes: int >= 0")
    .SetIsStateful()
    .SetAllowsUninitializedInput()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Does as CheckpointRestore, with reference variables in groups behind the others.

prefixes: As there.
variables: As there.
references: More of them.
group_sizes: As there.
pieces: As there.
piece_names: As there.
wholes: As there.
whole_names: As there.
bytes: As there.
)doc");

}  // namespace
}  // namespace tf_syncrep
