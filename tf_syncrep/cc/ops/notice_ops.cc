// Declares the ops of notice: attributes, shapes, documentation.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/common_shapes.h"

namespace tf_syncrep {
namespace {

REGISTER_OP("Syncrep>AwaitNotice")
    .Input("until_end: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Waits until the process of its task has notice, that is, was sent SIGTERM.

While an op waits until the end, the process does not do what it does at a SIGTERM, unless
there is a second one, after five seconds. It does that when no op waits any more.
The op fails as Cancelled if its step is cancelled, or if the process can have no thread
to wait with. A process that ignores SIGTERM has no notice.

until_end: Whether to wait on when the process has notice, until the step is cancelled.
)doc");

REGISTER_OP("Syncrep>NoteWork")
    .Output("has_notice: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Lets a notice not cut off the step that this op is part of.

At a SIGTERM the process does what it does at one only when the step is over, and no
other one that has this op begins within two seconds; but it waits ten seconds for a step
at the most.

has_notice: Whether the process has notice.
)doc");

REGISTER_OP("Syncrep>HadNotice")
    .Output("had_notice: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Says whether the process of its task, which is there, has had notice.

It is none of the work that NoteWork tells of.

had_notice: Whether it has notice, or had it, and has done since what it does at a SIGTERM.
)doc");

}  // namespace
}  // namespace tf_syncrep
