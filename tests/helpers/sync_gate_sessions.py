"""Sessions that call a gate with fed arguments: for any worker, from any thread."""

from typing import Any

import tensorflow as tf

from tf_syncrep.python.ops import sync_gate_ops as ops
from tf_syncrep.python.sync import gate_stats

tf1 = tf.compat.v1

INCARNATION = 1


class GateSession:
    """A session, and the protocol's calls in a graph of its own.

    A session without a target has a gate of its own; sessions of one server share one
    by its name.
    """

    def __init__(self, quorum: int, total: int, *, target: str = "", **options: Any):
        """Opens it; `options` are of `sync_gate`, as are the numbers."""
        with tf.Graph().as_default() as graph:
            handle = ops.sync_gate(quorum, total, **options)
            self._device = tf1.placeholder(tf.string, [])
            self._generation = tf1.placeholder(tf.int64, [])
            self._round = tf1.placeholder(tf.int64, [])
            self._step = tf1.placeholder(tf.int64, [])
            worker = (self._device, INCARNATION)
            contribution = (self._generation, self._round, *worker)
            self._open = ops.sync_gate_open(handle, self._step)
            self._acquire = ops.sync_gate_acquire(handle, *worker)
            self._admit = ops.sync_gate_admit(handle, *contribution, True)
            self._commit = ops.sync_gate_commit(handle, *contribution)
            self._wait_quorum = ops.sync_gate_wait_quorum(handle, self._generation)
            self._advance = ops.sync_gate_advance(
                handle, self._generation, self._round, self._step
            )
            self._close = ops.sync_gate_close(handle, ops.ANY_GENERATION)
            self._stats = ops.sync_gate_stats(handle)
        self.session = tf1.Session(target, graph=graph)

    def __enter__(self) -> "GateSession":
        return self

    def __exit__(self, *_: Any) -> None:
        self.session.close()

    def open(self, step: int) -> int:
        """Opens the gate; returns the generation."""
        return int(self.session.run(self._open, {self._step: step}))

    def acquire(self, device: str, **options: Any) -> Any:
        """Waits for a permit: generation, round, step; `options` are RunOptions."""
        return self._run(self._acquire, {self._device: device}, options)

    def admit(self, permit: Any, device: str, **options: Any) -> bool:
        """Asks whether a worker may push; `options` are RunOptions."""
        return bool(self._run(self._admit, self._feed(permit, device), options))

    def commit(self, permit: Any, device: str, **options: Any) -> bool:
        """Says that a worker has pushed; `options` are RunOptions."""
        return bool(self._run(self._commit, self._feed(permit, device), options))

    def wait_quorum(self, generation: int) -> Any:
        """Waits for a full round: its number, and its number of gradients."""
        return self.session.run(self._wait_quorum, {self._generation: generation})

    def advance(self, generation: int, round_number: int, step: int) -> bool:
        feed = {
            self._generation: generation,
            self._round: round_number,
            self._step: step,
        }
        return bool(self.session.run(self._advance, feed))

    def close(self) -> None:
        """Closes the gate, not the session."""
        self.session.run(self._close)

    def stats(self) -> dict[str, Any]:
        """The gate's counters, as `gate_stats.to_dict` returns them."""
        return gate_stats.to_dict(*self.session.run(self._stats))

    def _feed(self, permit: Any, device: str) -> dict[Any, Any]:
        generation, round_number, _ = permit
        return {
            self._generation: generation,
            self._round: round_number,
            self._device: device,
        }

    def _run(self, fetches: Any, feed: dict[Any, Any], options: dict[str, Any]) -> Any:
        run_options = tf1.RunOptions(**options) if options else None
        return self.session.run(fetches, feed, options=run_options)
