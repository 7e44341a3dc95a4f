"""What updates are made on: variables, each with an accumulator beside it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.sync.gradient_accumulators import (
    GradientAccumulator,
    GradientKind,
    kind_of,
    make_accumulator,
)


@dataclasses.dataclass(frozen=True)
class _Target:
    """A variable, and what its gradients are like."""

    variable: Any = dataclasses.field(compare=False, repr=False)
    # The variable is kept, so that its id stays its own.
    native: Any = dataclasses.field(compare=False, repr=False)
    key: int = dataclasses.field(repr=False)
    name: str
    kind: GradientKind


class Targets:
    """The variables that the first gradients were for, and their accumulators.

    An update is of all of them: a gate counts gradients of a whole batch.
    """

    def __init__(self):
        """Makes nothing yet."""
        # Guards what follows while functions are traced, by several threads.
        self._lock = threading.Lock()
        self._targets: list[_Target] | None = None
        self.accumulators: list[GradientAccumulator] = []
        # Set once gradients were seen: it is known what to update.
        self.are_known = threading.Event()

    @property
    def variables(self) -> list[Any]:
        """The variables, as the optimizer got them."""
        return [target.variable for target in self._targets or []]

    def check(
        self, gradients: Sequence[Any], variables: Sequence[Any], natives: Sequence[Any]
    ) -> None:
        """Makes the accumulators at the first call; compares at each other one.

        Args:
            gradients: one for each variable.
            variables: as the optimizer got them.
            natives: the same as TensorFlow's variables.

        Raises:
            ValueError: gradients for other variables, or of other kinds, than those
                of the first call.
        """
        targets = [
            _Target(variable, native, id(native), native.name, kind_of(gradient))
            for gradient, variable, native in zip(
                gradients, variables, natives, strict=True
            )
        ]
        with self._lock:
            if self._targets is None:
                self._make_accumulators(targets)
                self._targets = targets
                self.are_known.set()
        if targets != self._targets:
            raise ValueError(
                "All train steps must have gradients of the same kinds for the same "
                "variables; train other variables with an optimizer of their own. "
                f"Received: {_described(targets)}; after {_described(self._targets)}."
            )

    def _make_accumulators(self, targets: list[_Target]) -> None:
        with tf.init_scope():
            self.accumulators = [
                make_accumulator(
                    target.kind,
                    target.native,
                    shared_name=None,
                    sparse_reduction_type="CMEAN",
                )
                for target in targets
            ]


def _described(targets: list[_Target]) -> str:
    return ", ".join(
        f"{'sparse' if target.kind.is_sparse else 'dense'} "
        f"{target.kind.dtype.name} for {target.name}"
        for target in targets
    )
