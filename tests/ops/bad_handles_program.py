"""Calls every op of the library with handles that it has to refuse.

It reports which inputs were tried, and which of these handles no error came of. Each
call is named on standard error before it is made.
"""

import sys

import programs
import tensorflow as tf
import unaligned_inputs_program as scenarios

from tf_syncrep.python.ops import op_library


class Caller(scenarios.Caller):
    """Tries bad handles in the place of each good one before an op is called."""

    def __init__(self):
        super().__init__(0)
        self.tried = set()
        self.accepted = []
        self._words = tf.Variable("a variable of another dtype")
        self._gate = op_library.load().syncrep_sync_gate(
            quorum=1, total=1, shared_name="another_resource"
        )

    def __call__(self, op, inputs, **attrs):
        for name, value in inputs.items():
            first = (tf.nest.flatten(value) or [None])[0]
            if _is_handle(first) and f"{op}: {name}" not in self.tried:
                self.tried.add(f"{op}: {name}")
                self._try(op, inputs, name, first, attrs)
        return super().__call__(op, inputs, **attrs)

    def _try(self, op, inputs, name, good, attrs):
        is_variable = name not in ("handle", "index")
        other = self._gate if is_variable else self._words.handle
        bad = [
            ("of shape [0]", good, [0]),
            ("of shape [2]", good, [2]),
            ("of another resource", other, []),
        ]
        if is_variable and "checkpoint" not in op:  # which has any dtype
            bad.append(("of another dtype", self._words.handle, []))
        for what, handle, shape in bad:
            print(op, name, what, file=sys.stderr, flush=True)
            try:
                self._call_with(op, inputs, name, handle, shape, attrs)
            except tf.errors.OpError:
                continue
            self.accepted.append(f"{op}: {name} {what}")

    def _call_with(self, op, inputs, name, bad, shape, attrs):
        """Calls an op with this handle, whose shape no shape function knows."""

        @tf.function(autograph=False)
        def call(handle, shape):
            # Where there are none, this one has no memory either.
            handles = tf.gather([handle, handle], tf.range(tf.reduce_prod(shape)))
            made = tf.nest.map_structure(
                lambda x: x() if callable(x) else self.tensor(x), inputs
            )
            flat = tf.nest.flatten(made[name])
            flat[0] = tf.reshape(handles, shape)
            made[name] = tf.nest.pack_sequence_as(made[name], flat)
            getattr(self._module, op)(**made, **attrs)

        spec = tf.TensorSpec([None], tf.int32)
        call.get_concrete_function(bad, spec)(bad, tf.constant(shape, tf.int32))


def _is_handle(value):
    return isinstance(value, tf.Tensor) and value.dtype == tf.resource


def main():
    call = Caller()
    for scenario in scenarios.SCENARIOS:
        scenario(call)
    programs.report({"tried": sorted(call.tried), "accepted": call.accepted})


if __name__ == "__main__":
    main()
