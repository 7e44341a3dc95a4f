// Declares the WorkQueue ops: attributes, shapes, documentation. `handle` is
// always that of the queue.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/common_shapes.h"

namespace tf_syncrep {
namespace {

REGISTER_OP("Syncrep>WorkQueue")
    .Attr("num_items: int")
    .Attr("num_epochs: int = 1")
    .Attr("shuffle: bool = false")
    .Attr("seed: int = 0")
    .Attr("fingerprint: int = 0")
    .Attr("lease_secs: float = 600.0")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("counted: bool = false")
    .Output("handle: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Makes a work queue, which hands out items of the data, or finds it by its name.

The op fails as InvalidArgument if an attribute is out of range, or a queue of this name
has others.

num_items: How many items there are, at least 1.
num_epochs: How often each is to be read; 0 for again and again.
shuffle: Whether each epoch has an order of its own.
seed: The seed of these orders.
fingerprint: Tells these items from others. It is no part of the queue, but has to be the
  same in all ops that find it, and in states that it continues from.
lease_secs: How long a reader may take for an item before another one gets it.
container, shared_name, counted: As in SyncGate.
)doc");

REGISTER_OP("Syncrep>WorkQueueTake")
    .Input("handle: resource")
    .Input("device: string")
    .Input("incarnation: int64")
    .Input("stream: int64")
    .Input("last: int64")
    .Output("ticket: int64")
    .Output("epoch: int64")
    .Output("item: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs)
    .Doc(R"doc(
Takes the next item, and notes that the last one was read to its end.

If the answer to a reader's call was lost, the reader gets the same item again. At the
end of the last epoch the call waits until others have read their items, which may come
back; it does not wait at a limit. The op fails as Aborted if another incarnation of the
worker, or the reader itself, has made a newer call, and as Cancelled if the queue is
gone.

device: The worker's task, as TaskId returns it.
incarnation: The incarnation of this task.
stream: Which of the worker's readers this is.
last: The ticket of the item that was read to its end, or 0 when a reader begins: if its
  stream holds an item, that is given back, to be read again.
ticket: The ticket of the item; 0 if there is no item any more, or none before the limit.
epoch: The item's epoch, from 0.
item: The item, from 0.
)doc");

REGISTER_OP("Syncrep>WorkQueueLeave")
    .Input("handle: resource")
    .Input("device: string")
    .Input("gives_back: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Hands out no more items to the present incarnation of a worker, which is to leave.

Its readers end when they have read the items that they hold. This holds until
WorkQueueLimit or WorkQueueRestore is called.

device: The worker's task, as TaskId returns it.
gives_back: Whether the worker is gone, and what it holds is given back, to be read again.
)doc");

REGISTER_OP("Syncrep>WorkQueueLimit")
    .Input("handle: resource")
    .Input("epoch: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets the last epoch whose items a work queue hands out, until the limit changes.

Readers that get there end, as at the end of the last epoch, but without waiting. The op
fails as InvalidArgument if the epoch is below -1.

epoch: The last epoch, from 0; or -1 for no limit, as at first.
)doc");

REGISTER_OP("Syncrep>WorkQueueStats")
    .Input("handle: resource")
    .Output("names: string")
    .Output("values: int64")
    .SetIsStateful()
    .SetShapeFn(VectorOutputs)
    .Doc(R"doc(
Reads a work queue's counters.

At any time handed_out is the sum of done, in_flight and given_back, and given_back that
of repeated and waiting_items.

names: The names of the counters.
values: Their values.
)doc");

REGISTER_OP("Syncrep>WorkQueueRecent")
    .Input("handle: resource")
    .Output("items: int64")
    .SetIsStateful()
    .SetShapeFn(VectorOutputs)
    .Doc(R"doc(
Tells which items readers have, and which they have read to their ends last.

If reading fails, the reason is likely in one of them.

items: The items, from 0.
)doc");

REGISTER_OP("Syncrep>WorkQueueSave")
    .Input("handle: resource")
    .Output("state: int64")
    .SetIsStateful()
    .SetShapeFn(VectorOutputs)
    .Doc(R"doc(
Reads the state of a work queue, for WorkQueueRestore: what was read, and what was not.

state: A vector, whose length depends on how many items are being read. These count as
  given back.
)doc");

REGISTER_OP("Syncrep>WorkQueueRestore")
    .Input("handle: resource")
    .Input("state: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Continues from the state of a work queue with the same items, epochs and order.

The op fails as InvalidArgument if the state belongs to another queue, or is no state;
the queue is unchanged then.

state: The state that WorkQueueSave returned.
)doc");

}  // namespace
}  // namespace tf_syncrep
