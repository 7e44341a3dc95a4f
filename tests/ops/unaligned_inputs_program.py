"""Calls every op of the library with inputs whose memory is aligned, or is not.

DLPack makes such tensors: they share the memory of an array, wherever it begins. The
argument says how many bytes they begin after an address that TensorFlow calls aligned.
It reports the results by scenario, and the ops and inputs that were not tried. Each
call is named on standard error before it is made.
"""

import itertools
import json
import os
import signal
import sys
import tempfile

import numpy as np
import programs
import tensorflow as tf

from tf_syncrep.python.ops import notice_ops, op_library

ALIGNMENT = 64
DTYPES = (tf.half, tf.bfloat16, tf.float32, tf.float64)
INDEX_DTYPES = (tf.int32, tf.int64)

_numbers = itertools.count()


class Caller:
    """Calls ops with inputs that begin `offset` bytes after aligned addresses.

    Without an offset they are where TensorFlow puts them.
    """

    def __init__(self, offset=None):
        self._offset = offset
        self._module = op_library.load()
        self._ops = [
            name
            for name in dir(self._module)
            if hasattr(self._module, f"{name}_eager_fallback")
        ]
        self._tried = {}  # by op, for each input whether it had such memory
        self._variables = []

    def untried(self):
        """Returns the ops that were not called, and the inputs without such memory.

        Strings, and handles of other resources than variables, have memory of
        TensorFlow's.
        """
        return [op for op in self._ops if op not in self._tried] + [
            f"{op}: {name}"
            for op, inputs in self._tried.items()
            for name, was_tried in inputs.items()
            if not was_tried
        ]

    def tensor(self, value, dtype=None):
        """Returns a tensor with this value, whose memory begins where it should."""
        if isinstance(value, tf.Tensor):
            return value
        array = np.asarray(value, dtype and dtype.as_numpy_dtype)
        if array.dtype.kind in "USO":
            return tf.constant(value, tf.string)
        if self._offset is None:
            return tf.constant(array)
        is_bfloat16 = array.dtype == tf.bfloat16.as_numpy_dtype
        array = array.view(np.uint16) if is_bfloat16 else array
        memory = np.empty(array.nbytes + 2 * ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % ALIGNMENT + self._offset
        shared = memory[begin : begin + array.nbytes].view(array.dtype)
        shared = shared.reshape(array.shape)
        shared[...] = array
        tensor = tf.experimental.dlpack.from_dlpack(shared.__dlpack__())
        tensor = tf.bitcast(tensor, tf.bfloat16) if is_bfloat16 else tensor
        self._check_place(tensor)
        return tensor

    def variable(self, value, dtype=None):
        """Returns the handle of a variable whose buffer begins where it should."""
        tensor = self.tensor(value, dtype)
        variable = tf.Variable(tf.zeros_like(tensor))
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tensor)
        self._check_place(self.read(variable.handle, tensor.dtype))
        self._variables.append(variable)  # it dies with the last reference
        return variable.handle

    def read(self, handle, dtype):
        """Returns the value of a variable."""
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

    def __call__(self, op, inputs, **attrs):
        """Calls an op in a function whose arguments are the inputs.

        References are given as functions that make them in its graph. Returns the
        outputs.
        """
        references = {
            name: x
            for name, x in inputs.items()
            if any(callable(one) for one in tf.nest.flatten(x))
        }
        others = {name: x for name, x in inputs.items() if name not in references}
        others = tf.nest.map_structure(self.tensor, others)

        @tf.function(autograph=False)
        def call(arguments):
            made = tf.nest.map_structure(lambda make: make(), references)
            return self.made(op, **arguments, **made, **attrs)

        print(op, list(inputs), attrs, file=sys.stderr, flush=True)
        outputs = call(others)
        tried = self._tried.setdefault(op, dict.fromkeys(inputs, False))
        for name in inputs:
            tried[name] |= name in references or any(
                self._counts(name, x) for x in tf.nest.flatten(others[name])
            )
        return tf.nest.flatten(outputs)

    def made(self, op, **arguments):
        """Makes an op in a function, which runs it though it may have no outputs."""
        outputs = getattr(self._module, op)(**arguments)
        if isinstance(outputs, tf.Operation):
            with tf.control_dependencies([outputs]):
                return [tf.constant(0)]
        return outputs

    def _counts(self, name, tensor):
        if tensor.dtype == tf.resource and name not in ("handle", "index"):
            return any(tensor is variable.handle for variable in self._variables)
        return tensor.dtype == tf.string or tensor.shape.num_elements() > 0

    def _check_place(self, tensor):
        if self._offset is None:
            return
        if tensor.dtype == tf.bfloat16:
            tensor = tf.bitcast(tensor, tf.uint16)
        begin = np.asarray(memoryview(tensor)).ctypes.data % ALIGNMENT
        assert tensor.shape.num_elements() == 0 or begin == self._offset, begin


_ONE = np.int64(1)


def _unique(name):
    return f"{name}_{next(_numbers)}"


def _numbers_of(shape, dtype, seed=0):
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype(dtype.as_numpy_dtype)


def adam_async(call):
    """All ops: resource and reference variables, dense and sparse gradients."""
    results = []
    for dtype, index_dtype in itertools.product(DTYPES, INDEX_DTYPES):
        slot = tf.float64 if dtype == tf.float64 else tf.float32
        rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
        inputs = {name: slot.as_numpy_dtype(x) for name, x in rates.items()}
        dense = {"grad": _numbers_of([37, 19], dtype, 1)}
        sparse = {
            "grad": _numbers_of([5, 19], dtype, 2),
            "indices": np.array([7, 3, 7, 36, 0], index_dtype.as_numpy_dtype),
        }
        values = {
            "var": (_numbers_of([37, 19], dtype, 3), dtype),
            "m": (np.zeros([37, 19]), slot),
            "v": (np.zeros([37, 19]), slot),
            "beta1_power": (0.9, slot),
            "beta2_power": (0.999, slot),
        }
        for gradient, prefix in ((dense, ""), (sparse, "sparse_")):
            count = call.variable(np.zeros([1]), tf.int64)
            for use_locking, (op, more) in itertools.product(
                (False, True),
                (
                    (f"resource_{prefix}apply_adam_async", {}),
                    (
                        f"syncrep_resource_{prefix}apply_adam_async_rounded",
                        {"rounding_count": count},
                    ),
                ),
            ):
                handles = {name: call.variable(*x) for name, x in values.items()}
                arguments = {**handles, **inputs, **gradient, **more}
                call(op, arguments, use_locking=use_locking)
                results += [call.read(handles[x], values[x][1]) for x in values]
            results.append(call.read(count, tf.int64))
            results += call(
                f"{prefix}apply_adam_async",
                {
                    **{name: _reference(*x) for name, x in values.items()},
                    **inputs,
                    **gradient,
                },
            )
    return results


def rules(call):
    """All ops that apply optimizers' rules."""
    results = []
    for dtype, index_dtype in itertools.product(DTYPES, INDEX_DTYPES):
        slot = tf.float64 if dtype == tf.float64 else tf.float32
        numbers = [slot.as_numpy_dtype(x) for x in (0.5, 0.25)]
        dense = {"grad": _numbers_of([37, 19], dtype, 1)}
        sparse = {
            "grad": _numbers_of([5, 19], dtype, 2),
            "indices": np.array([7, 3, 7, 36, 0], index_dtype.as_numpy_dtype),
        }
        for gradient, prefix in ((dense, ""), (sparse, "sparse_")):
            var = call.variable(_numbers_of([37, 19], dtype, 3), dtype)
            momentum = call.variable(np.zeros([37, 19]), slot)
            inputs = {"var": var, "slots": [momentum], "numbers": numbers, **gradient}
            count = call.variable(np.zeros([1]), tf.int64)
            for counts in ([], [count]):
                call(
                    f"syncrep_resource_{prefix}apply_rule",
                    {**inputs, "rounding_count": counts},
                    rule="momentum",
                )
                results += [call.read(var, dtype), call.read(momentum, slot)]
            results.append(call.read(count, tf.int64))
            references = {
                "var": _reference(_numbers_of([37, 19], dtype, 3), dtype),
                "slots": [_reference(np.zeros([37, 19]), slot)],
            }
            call(
                f"syncrep_{prefix}apply_rule", {**inputs, **references}, rule="momentum"
            )
    return results


def _reference(value, dtype):
    """Returns a function that makes a reference variable with this value in a graph."""
    value = np.asarray(value, dtype.as_numpy_dtype)

    def make():
        variable = tf.raw_ops.VariableV2(
            shape=value.shape, dtype=dtype, shared_name=_unique("reference")
        )
        return tf.raw_ops.Assign(ref=variable, value=value)

    return make


def accumulators(call):
    """Dense and sparse accumulators, by steps and by rounds."""
    results = []
    for mode, dtype in itertools.product(("STEP", "ROUND"), DTYPES):
        options = {"dtype": dtype, "mode": mode, "counted": True}
        (dense,) = call("syncrep_dense_accumulator", {}, shape=[31, 3], **options)
        (sparse,) = call("syncrep_sparse_accumulator", {}, shape=[31, 3], **options)
        for handle in (dense, sparse):
            step = {"handle": handle, "new_global_step": np.int64(4)}
            call("syncrep_accumulator_set_global_step", step)
        for seed in range(3):
            gradient = {
                "handle": dense,
                "local_step": np.int64(4),
                "gradient": _numbers_of([31, 3], dtype, seed),
            }
            results += call("syncrep_accumulator_apply_dense", gradient)
            index_dtype = INDEX_DTYPES[seed % 2].as_numpy_dtype
            gradient = {
                "handle": sparse,
                "local_step": np.int64(4),
                "gradient_indices": np.array([5, 1, 30], index_dtype),
                "gradient_values": _numbers_of([3, 3], dtype, seed),
                "gradient_shape": np.array([31, 3]),
            }
            results += call(
                "syncrep_accumulator_apply_sparse", gradient, has_known_shape=True
            )
        for kind, handle in (("dense", dense), ("sparse", sparse)):
            results += call("syncrep_accumulator_num_accumulated", {"handle": handle})
            number = {"num_required": np.int32(3)}
            round_ = {"round": np.int64(4), "num_gradients": np.int64(3)}
            by = ("", number) if mode == "STEP" else ("_round", round_)
            inputs = {"handle": handle, **by[1]}
            results += call(
                f"syncrep_accumulator_take{by[0]}_{kind}", inputs, dtype=dtype
            )
            results += call("syncrep_accumulator_stats", {"handle": handle})
    return results


def checkpoints(call):
    """Two tables in parts of one variable, written, changed, and restored."""
    results = []
    layout = {
        "group_sizes": np.array([2]),
        "pieces": np.array([[0, 20, 0, 1, 20, -1], [0, 11, 0, 1, 11, -1]]),
        "piece_names": np.array(["a", "a_slot", "b", "b_slot"]),
        "whole_names": np.array(["whole"]),
    }
    values = [_numbers_of([31, 3], tf.float32, seed) for seed in range(2)]
    saved = {"tensors": [np.arange(5.0)], "tensor_names": np.array(["tensor"])}
    for is_reference in (False, True):
        op = "ref_checkpoint" if is_reference else "checkpoint"
        folder = tempfile.mkdtemp()
        name = _unique("writer")
        (writer,) = call("syncrep_checkpoint_writer", {}, shared_name=name)
        if is_reference:
            tables = {
                "variables": [call.variable(np.zeros([31, 3], np.float32))],
                "references": [_reference(values[1], tf.float32)],
            }
        else:
            tables = {"variables": [call.variable(value) for value in values]}
        inputs = {**layout, **tables, "wholes": [call.variable(np.arange(7.0))]}
        base = ""
        for token in ("first", "second"):
            begin = {
                "handle": writer,
                "prefix": os.path.join(folder, token),
                "token": token,
                "base": base,
            }
            call(f"syncrep_{op}_begin", {**begin, **inputs, **saved})
            table = tables["references"][0] if is_reference else tables["variables"][0]
            rows = np.array([3, 30], INDEX_DTYPES[token == "first"].as_numpy_dtype)
            call(f"syncrep_{op}_keep", {"variable": table, "rows": rows})
            if is_reference:
                call("syncrep_checkpoint_write", {"handle": writer})
            done = False
            while not done:
                # How many bytes were kept depends on when rows were changed.
                done, *others, _, not_finite = call(
                    "syncrep_checkpoint_progress", {"handle": writer}
                )
            results += [*others, not_finite]
            base = token
            changed = call.variable(np.ones([31, 3], np.float32))
            inputs["variables"] = [changed, *inputs["variables"][1:]]
        call("syncrep_checkpoint_cancel", {"handle": writer})
        prefixes = np.array([os.path.join(folder, x) for x in ("first", "second")])
        stored = {"prefixes": prefixes, "stored_rows": np.array([20, 11])}
        results += call(f"syncrep_{op}_restore", {**stored, **inputs})
        reader = tf.train.load_checkpoint(os.path.join(folder, "first"))
        results += [reader.get_tensor(x) for x in ("a", "b_slot", "whole", "tensor")]
    return results


def embeddings(call):
    """Rows that ids name, looked up and combined, with the gradient of that."""
    results = []
    for dtype, row_dtype in itertools.product(DTYPES, INDEX_DTYPES):
        ids = [np.array([3, 1, 3, 8], np.int32), np.array([0, 9], np.int64)]
        outputs = call(
            "syncrep_embedding_rows",
            {"ids": ids},
            num_shards=2,
            num_features=2,
            num_rows=20,
            first_rows=[0, 10],
            vocabulary_sizes=[10, 10],
            features=["f", "g"],
            tables=["t", "u"],
            Trows=row_dtype,
        )
        results += outputs
        rows, places = outputs[:2], outputs[2:]
        vectors = []
        for shard in range(2):
            table = call.variable(_numbers_of([10, 3], dtype, shard))
            inputs = {"table": table, "rows": rows[shard].numpy()}
            vectors += call(
                "syncrep_embedding_gather",
                inputs,
                dtype=dtype,
                Tout=dtype,
                shape=[None, 3],
            )
        results += vectors
        inputs = {
            "vectors": [x.numpy() for x in vectors],
            "places": [x.numpy() for x in places],
            "row_splits": [np.array([0, 1, 4])],
            "weights": [np.array([1.0, 0.5, 2.0, 1.0], np.float32)],
        }
        attrs = {
            "combiners": ["mean", "none"],
            "is_ragged": [True, False],
            "is_weighted": [True, False],
        }
        sums = tf.float64 if dtype == tf.float64 else tf.float32
        combined = call("syncrep_embedding_combine", inputs, Tsum=sums, **attrs)
        gradients = {"gradients": [x.numpy() for x in combined]}
        results += combined
        results += call(
            "syncrep_embedding_combine_grad", {**gradients, **inputs}, **attrs
        )
    return results


def row_messages(call):
    """Rows with other tensors before them."""
    results = []
    for dtype in DTYPES:
        inputs = {
            "rows": _numbers_of([5, 16], dtype, 1),
            "others": [np.array([1.0, 2.0], np.float32), np.array([3], np.int64)],
        }
        attrs = {"shapes": [[2], [1]], "head_rows": 8}
        (message,) = call("syncrep_row_message", inputs, **attrs)
        results += [message]
        results += call(
            "syncrep_row_message_parts",
            {"message": message.numpy()},
            Tothers=[tf.float32, tf.int64],
            **attrs,
        )
    return results


def growing_tables(call):
    """Two tables of a part: looked up, maintained, exported and imported."""
    results = call("syncrep_table_zeros", {}, shape=[3, 2], dtype=tf.float32)
    for dtype in DTYPES:
        tables = {
            "tables": ["t", "u"],
            "first_rows": [0, 10],
            "capacities": [10, 20],
            "min_counts": [1, 1],
            "seeds": [0, 1],
            "initializers": ["uniform", "normal"],
            "initial_numbers": np.array([0.0, 1.0, 2.0, 3.0]).view(np.int64).tolist(),
        }
        (index,) = call("syncrep_table_index", {}, counted=True, **tables)
        columns = {
            "keys": call.variable(np.zeros([30], np.int64)),
            "uses": call.variable(np.zeros([30, 2], np.int32)),
        }
        vectors = {"vectors": call.variable(np.zeros([30, 3]), dtype)}
        (request, *places) = call(
            "syncrep_table_requests",
            {"ids": [np.array([3, 1, 3], np.int32), np.array([-7, 1 << 40])]},
            num_shards=1,
            num_features=2,
            num_tables=2,
            table_of_feature=[0, 1],
        )
        part = {"index": index, **vectors, **columns}
        rows, values = call(
            "syncrep_table_find",
            {**part, "request": request.numpy()},
            dtype=dtype,
            Tout=dtype,
            insert=True,
            shape=[None, 3],
        )
        results += [request, *places, rows, values]
        of_rows = {
            "request": request.numpy(),
            "rows": rows.numpy(),
            "gradient": values.numpy(),
        }
        results += call(
            "syncrep_table_gradient",
            {"index": index, **columns, **of_rows},
            dtype=dtype,
        )
        slot = call.variable(_numbers_of([30, 3], dtype))
        for step in (4, 5):
            results += call(
                "syncrep_table_maintain",
                {**part, "step": np.int64(step), "slots": [slot]},
                dtype=dtype,
                slot_initials=np.array([0.5]).view(np.int64).tolist(),
                evict=["none", "none"],
                unused_for=[3, 0],
            )
        results.append(call.read(slot, dtype))
        imported = {
            "row_keys": np.array([9, 8]),
            "last_uses": np.array([1, 2], np.int32),
            "counts": np.array([3, 4], np.int32),
        }
        results += call(
            "syncrep_table_import", {**part, **imported}, dtype=dtype, table=1
        )
        results += call("syncrep_table_export", {"index": index, **columns}, table=1)
        results += call(
            "syncrep_table_release",
            {**part, "row_keys": np.array([9, 7]), "slots": [slot]},
            dtype=dtype,
            table=1,
            slot_initials=[0],
            rests=False,
            sets_back=False,
        )
        call("syncrep_table_stats", {"index": index})
    return results


def gates(call):
    """A training of one worker. The numbers of generations and rounds may differ."""
    options = {"quorum": 1, "total": 1, "shared_name": _unique("gate")}
    (gate,) = call("syncrep_sync_gate", {}, **options)
    gate = {"handle": gate}
    worker = {**gate, "device": "/job:worker/task:0", "incarnation": np.int64(7)}
    call("syncrep_task_id", {})
    (generation,) = call("syncrep_sync_gate_open", {**gate, "step": np.int64(5)})
    call("syncrep_sync_gate_configure", {**gate, "quorum": _ONE, "total": _ONE})
    call("syncrep_sync_gate_add_passes", {**gate, "num_passes": np.int64(0)})
    of_updater = {**gate, "generation": generation.numpy()}

    def acquire():
        permit = call("syncrep_sync_gate_acquire", worker)
        generation, round_, step = (x.numpy() for x in permit)
        return {**worker, "generation": generation, "round": round_}, step

    permit, step = acquire()
    results = [step]
    call("syncrep_sync_gate_abort", permit)
    for op, is_flushed in (("wait_quorum", False), ("flush", True)):
        permit, step = acquire()
        results += [step, *call("syncrep_sync_gate_admit", {**permit, "fit": True})]
        results += call("syncrep_sync_gate_commit", permit)
        round_, num_gradients = call(f"syncrep_sync_gate_{op}", of_updater)
        end = {**of_updater, "round": round_.numpy(), "step": np.int64(6 + is_flushed)}
        results += [num_gradients, *call("syncrep_sync_gate_advance", end)]
    call("syncrep_sync_gate_leave", worker)
    call("syncrep_sync_gate_stats", gate)
    call("syncrep_sync_gate_drain", of_updater)
    call("syncrep_sync_gate_cancel_updater", {**of_updater, **worker})
    call("syncrep_sync_gate_close", of_updater)
    failure = {**of_updater, "code": np.int32(10), "message": "ended"}
    call("syncrep_sync_gate_fail", failure)
    return results


def work_queues(call):
    """Items taken, the state saved and restored."""
    (queue,) = call("syncrep_work_queue", {}, num_items=3, shared_name=_unique("queue"))
    queue = {"handle": queue}
    take = {
        **queue,
        "device": "/job:worker/task:0",
        "incarnation": np.int64(7),
        "stream": np.int64(0),
        "last": np.int64(-1),  # none
    }
    results = call("syncrep_work_queue_take", take)[1:]
    (state,) = call("syncrep_work_queue_save", queue)
    call("syncrep_work_queue_restore", {**queue, "state": state.numpy()})
    call("syncrep_work_queue_limit", {**queue, "epoch": _ONE})
    names, values = call("syncrep_work_queue_stats", queue)
    (items,) = call("syncrep_work_queue_recent", queue)
    leave = {**queue, "device": "/job:worker/task:0", "gives_back": True}
    call("syncrep_work_queue_leave", leave)
    return [*results, state, names, values, items]


def notices(call):
    """This process has notice."""
    notice_ops.begin()
    signal.raise_signal(signal.SIGTERM)
    call("syncrep_await_notice", {"until_end": False})
    results = [call("syncrep_note_work", {}), call("syncrep_had_notice", {})]
    notice_ops.end()
    return [x for (x,) in results]


SCENARIOS = (
    adam_async,
    rules,
    accumulators,
    checkpoints,
    embeddings,
    row_messages,
    growing_tables,
    gates,
    work_queues,
    notices,
)


def results_of(call):
    """The results of each scenario, in a form that shows all bits."""
    return {scenario.__name__: _bits(scenario(call)) for scenario in SCENARIOS}


def _bits(results):
    return [repr(np.asarray(x).tolist()) for x in results if x is not None]


def main(offset):
    call = Caller(offset)
    programs.report({"results": results_of(call), "untried": call.untried()})


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
