"""The variables that are updated, each with an accumulator beside it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import compat
from tf_syncrep.python.sync.gradient_accumulators import (
    GradientAccumulator,
    GradientKind,
    kind_of,
    make_accumulator,
)


@dataclasses.dataclass(frozen=True)
class _Target:
    """A variable, and the kind of its gradients."""

    variable: Any = dataclasses.field(compare=False, repr=False)
    # The variable is kept alive, so that no other one gets its id.
    native: Any = dataclasses.field(compare=False, repr=False)
    key: int = dataclasses.field(repr=False)
    name: str
    kind: GradientKind


class Targets:
    """The variables of the first gradients, and their accumulators.

    Every update is of all of them, since a gate counts gradients of whole batches.
    """

    def __init__(self):
        # It guards the following fields while several threads trace functions.
        self._lock = threading.Lock()
        self._targets: list[_Target] | None = None
        self.accumulators: list[GradientAccumulator] = []
        # It is set once there were gradients, which tell the variables to update.
        self.are_known = threading.Event()

    @property
    def variables(self) -> list[Any]:
        """The variables, as the optimizer got them."""
        return [target.variable for target in self._targets or []]

    def check(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes the accumulators at the first call; compares at each further call.

        `variables`: the variables, as Keras has them. Raises ValueError: the variables,
        or the kinds of the gradients, differ from those of the first call.
        """
        targets = [
            _Target(variable, native, id(native), native.name, kind_of(gradient))
            for gradient, variable, native in zip(
                gradients, variables, map(compat.native, variables), strict=True
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
                "variables; train other variables with a separate optimizer, and make "
                "another optimizer after a layer was frozen or freed. "
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
