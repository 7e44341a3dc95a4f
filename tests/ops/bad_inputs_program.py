"""Calls every op of the library with handles and shapes that it has to refuse.

It reports which inputs were tried, of which no error came that says what is wrong, and
in which scenarios good calls gave other results than without bad ones in between. Each
call is named on standard error before it is made.
"""

import re
import sys

import numpy as np
import programs
import tensorflow as tf
import unaligned_inputs_program as scenarios

from tf_syncrep.python.ops import op_library


class Caller(scenarios.Caller):
    """Tries bad inputs in the place of each good one before an op is called."""

    def __init__(self):
        super().__init__()
        self.tried = set()
        self.accepted = []
        self._words = tf.Variable("a variable of another dtype")
        self._gate = op_library.load().syncrep_sync_gate(
            quorum=1, total=1, shared_name="another_resource"
        )

    def __call__(self, op, inputs, **attrs):
        for name, value in inputs.items():
            first = (tf.nest.flatten(value) or [None])[0]
            if f"{op}: {name}" in self.tried:
                continue
            if _is_handle(first):
                self._try(op, inputs, name, self._bad_handles(op, name, first), attrs)
            elif np.ndim(first) == 0 and isinstance(first, np.generic | str | bool):
                bad = [(first, shape) for shape in ([1], [2, 1], [0])]
                self._try(op, inputs, name, bad, attrs)
        return super().__call__(op, inputs, **attrs)

    def _bad_handles(self, op, name, good):
        is_variable = name not in ("handle", "index")
        other = self._gate if is_variable else self._words.handle
        bad = [(good, [0]), (good, [2]), (other, [])]
        if is_variable and "checkpoint" not in op:  # which has any dtype
            bad.append((self._words.handle, []))
        return bad

    def _try(self, op, inputs, name, bad, attrs):
        self.tried.add(f"{op}: {name}")
        call = self._with_input(op, inputs, name, bad[0][0], attrs)
        for value, shape in bad:
            what = f"{op}: {name} {shape or value}"
            print(what, file=sys.stderr, flush=True)
            try:
                call(self.tensor(value), tf.constant(shape, tf.int32))
            except tf.errors.OpError as error:
                named = r"\S+" if isinstance(inputs[name], list) else rf"\b{name}"
                rule = rf"{named} must (be (a )?scalar|have exactly one element), but"
                given = re.escape(str(shape).replace(" ", ""))
                if shape and not re.search(f"{rule}.*{given}", error.message):
                    self.accepted.append(f"{what}: {error.message[:200]}")
            else:
                self.accepted.append(what)

    def _with_input(self, op, inputs, name, good, attrs):
        """A function of an input's value, and its shape, which no shape function knows.

        The other inputs are as they should be.
        """

        @tf.function(autograph=False)
        def call(bad, shape):
            # Where there are none, this one has no memory either.
            bad = tf.gather([bad, bad], tf.range(tf.reduce_prod(shape)))
            made = tf.nest.map_structure(
                lambda x: x() if callable(x) else self.tensor(x), inputs
            )
            flat = tf.nest.flatten(made[name])
            flat[0] = tf.reshape(bad, shape)
            made[name] = tf.nest.pack_sequence_as(made[name], flat)
            return self.made(op, **made, **attrs)

        specs = [
            tf.TensorSpec([], self.tensor(good).dtype),
            tf.TensorSpec([None], tf.int32),
        ]
        return call.get_concrete_function(*specs)


def _is_handle(value):
    return isinstance(value, tf.Tensor) and value.dtype == tf.resource


def main():
    call, undisturbed = Caller(), scenarios.results_of(scenarios.Caller())
    results = scenarios.results_of(call)
    changed = [name for name, bits in results.items() if bits != undisturbed[name]]
    programs.report(
        {"tried": sorted(call.tried), "accepted": call.accepted, "changed": changed}
    )


if __name__ == "__main__":
    main()
