"""Executions of steps on the workers of a ParameterServerStrategy.

The coordinator keeps a window of executions scheduled, and takes their results as they
arrive; those of predictions it takes in the order in which it scheduled them. So the
workers are always some steps ahead, and none has to wait for a slow one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_syncrep.python.keras import cluster, compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.fit.batches import NO_BATCHES, Batches
from tf_syncrep.python.keras.fit.ends import ASK_AGAIN_SECS
from tf_syncrep.python.keras.fit.execution import Executions
from tf_syncrep.python.keras.fit.metrics import NO_METRICS, metrics_of
from tf_syncrep.python.keras.fit.notice import FitNotice
from tf_syncrep.python.keras.fit.results import Arrivals, Result
from tf_syncrep.python.keras.fit.sizes import (
    LARGEST_EXECUTION,
    AutoSizes,
    Sizes,
    hear_of_batches,
)
from tf_syncrep.python.keras.fit.step import Step
from tf_syncrep.python.keras.parts import optimizers_of


class ScheduledSteps:
    """Runs the steps of one model on the workers of its strategy."""

    def __init__(self, model: Any, prefetch_rows: bool = False):
        self._model = model
        self._prefetch_rows = prefetch_rows
        strategy = model.distribute_strategy
        compat.isolate_workers()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._num_workers = cluster.num_tasks("worker")
        # Keras would track an assigned attribute.
        self._kept = vars(model).get(trainer.KEPT) or _Kept()
        vars(model)[trainer.KEPT] = self._kept
        self._metrics = NO_METRICS
        self._sizes: dict[str, Sizes] = {}
        # A `fit` that listens sets another one.
        self.notice = FitNotice([], None)

    @property
    def has_notice(self) -> bool:
        """Whether no more steps are to be scheduled."""
        return self.notice.is_given

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Within this context, the additions of steps to metrics are added up here."""
        metrics = metrics_of(self._model, self._num_workers)
        if not metrics.has_variables_of(self._kept.metrics):
            self._kept.metrics = metrics
        self._metrics = self._kept.metrics
        with self._metrics.here():
            yield

    def sizes(self, kind: str, batches: Batches, callbacks: Any) -> Sizes:
        """Returns how many steps an execution has, and callbacks hear of at once."""
        if kind not in self._sizes:
            per_call = trainer.steps_per_execution(self._model)
            if isinstance(per_call, int):
                sizes = Sizes(per_call)
            elif hear_of_batches(callbacks.callbacks, kind):
                sizes = Sizes(1)
            else:
                sizes = AutoSizes(self._num_workers, batches.num_steps)
            self._sizes[kind] = sizes
        self._sizes[kind].begin_epoch()
        return self._sizes[kind]

    def largest_size(self) -> int:
        """Returns how many steps an execution has at the most."""
        per_call = trainer.steps_per_execution(self._model)
        if isinstance(per_call, int):
            return Sizes(per_call).largest
        return LARGEST_EXECUTION

    def run(
        self, kind: str, batches: Batches, sizes: Sizes, first_step: int = 0
    ) -> Iterator[Result]:
        """Schedules the executions of one epoch, or fewer if there is notice.

        Yields the result of each execution, as they are taken.
        """
        reads_on: bool | None = None  # None as long as there is no notice
        executions = self._executions(kind, batches)
        window = self._window()
        is_empty = first_step == 0
        for ends in batches.passes(self._num_workers, window):
            arrivals = Arrivals(
                self.coordinator,
                executions,
                batches,
                functools.partial(
                    cluster.tell_who_answers, self._model.distribute_strategy
                ),
                in_order=kind == "predict",
                runs_again=kind != "train",
            )
            due = batches.executions(sizes, first_step)
            while not ends.is_over:
                if self.has_notice:
                    if reads_on is None:
                        reads_on = batches.let_end()
                    if not reads_on or self.notice.secs_to_stop <= 0:
                        ends.stop()
                        if ends.is_over:
                            break
                num_wanted = ends.num_wanted()
                for i in range(num_wanted):
                    scheduled = next(due, None)
                    if scheduled is None:
                        ends.note_end(num_wanted - i)
                        break
                    executions.trace(scheduled.size)
                    arrivals.schedule(scheduled)
                if ends.is_over:
                    break
                result = arrivals.popleft_within(ASK_AGAIN_SECS)
                if result is None:
                    ends.add_silence(batches.is_made)
                    continue
                if result.is_last:
                    ends.add(result.worker, result.has_ended)
                if result.untraced:
                    executions.trace(result.untraced)
                elif result.num_steps:
                    is_empty = False
                    yield result
                    sizes.note_taken()
            if reads_on is not None:
                return
        if is_empty:
            raise ValueError(NO_BATCHES.format(batches.argument))

    def _window(self) -> int:
        """Returns how many executions are scheduled at once.

        There are twice as many as workers, so that none is idle while results are
        taken. All gradients that a gate waits for must be among them.
        """
        sizes = [self._num_workers]
        for optimizer in optimizers_of(self._model):
            sizes.append(getattr(optimizer, "replicas_to_aggregate", 0))
            sizes.append(getattr(optimizer, "total_num_replicas", 0))
        return self._num_workers + max(sizes)

    def _executions(self, kind: str, batches: Batches) -> Executions:
        """Returns the functions for a kind of steps, kept until something changes."""
        step = getattr(self._model, f"{kind}_step")
        key = (
            step,
            trainer.made_by_compile(self._model),
            # Whoever reads the data: a function knows the results of one trace alone.
            batches.element_spec,
            type(batches),
            list(optimizers_of(self._model)),
            self._metrics,
            self._prefetch_rows,
        )
        variables = self._model.trainable_variables
        known = self._kept.by_kind
        if (
            kind not in known
            or known[kind][0] != key
            # `==` of variables compares their values.
            or list(map(id, known[kind][1])) != list(map(id, variables))
        ):
            next_number = functools.partial(next, self._kept.numbers)
            step = Step(
                self._model,
                kind,
                next_number if self._num_workers > 1 else None,
                self._metrics,
                self._prefetch_rows,
            )
            executions = Executions(
                step,
                type(batches),
                batches.element_spec,
                self._model.distribute_strategy,
            )
            known[kind] = (key, variables, executions)
        return known[kind][-1]


class _Kept:
    """What a model keeps from one training to the next."""

    def __init__(self):
        self.metrics = NO_METRICS
        self.by_kind: dict[str, tuple[Any, list[Any], Executions]] = {}
        self.numbers = itertools.count()
