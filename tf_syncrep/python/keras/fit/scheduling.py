"""Executions of steps on the workers of a ParameterServerStrategy.

The coordinator keeps a window of executions scheduled, and takes their results as they
arrive; those of predictions it takes in the order in which it scheduled them. So the
workers are always some steps ahead, and none has to wait for a slow one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras import cluster, compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.fit.arrivals import Arrivals
from tf_syncrep.python.keras.fit.data import NO_BATCHES, Batches
from tf_syncrep.python.keras.fit.ends import ASK_AGAIN_SECS, Ends
from tf_syncrep.python.keras.fit.execution import Execution, Result
from tf_syncrep.python.keras.fit.metrics import NO_METRICS, Metrics, metrics_of
from tf_syncrep.python.keras.fit.passes import WorkersPasses
from tf_syncrep.python.keras.fit.silence import Silence
from tf_syncrep.python.keras.fit.sizes import AutoSizes, Sizes, hear_of_batches
from tf_syncrep.python.keras.fit.step import Step
from tf_syncrep.python.keras.parts import optimizers_of

# The name of the attribute in which a model keeps what is reused.
_KEPT = "_tf_syncrep_kept"


class ScheduledSteps:
    """Runs the steps of one model on the workers of its strategy."""

    def __init__(self, model: Any, prefetch_rows: bool = False):
        """Wraps a compiled model under a ParameterServerStrategy.

        Args:
            model: the model.
            prefetch_rows: whether a step of training, except the first of an execution,
                looks up rows of tables before the last step's updates.
        """
        self._model = model
        self._prefetch_rows = prefetch_rows
        strategy = model.distribute_strategy
        compat.isolate_workers()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._num_workers = cluster.num_tasks("worker")
        # Keras would track an assigned attribute.
        self._kept = vars(model).setdefault(_KEPT, _Kept())
        self._metrics = NO_METRICS
        self._sizes: dict[str, Sizes] = {}

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

    def run(
        self, kind: str, batches: Batches, sizes: Sizes, first_step: int = 0
    ) -> Iterator[tuple[int, Result]]:
        """Schedules the executions of one epoch.

        Args:
            kind: "train", "test" or "predict".
            batches: the data.
            sizes: how many steps to make in one execution.
            first_step: how many steps of the epoch are done already.

        Yields:
            The number of steps and the result of each execution, as they are taken.
        """
        functions = self._functions(kind, batches)
        if isinstance(batches, WorkersPasses):
            yield from self._run_passes(functions, batches, sizes, first_step)
            return
        window = self._window()
        # One worker runs executions in order, though two results may be seen at once.
        in_order = kind == "predict" or self._num_workers == 1
        arrivals = self._arrivals(1 if in_order else window)
        executions = batches.executions(sizes, first_step)
        try:
            while True:
                num_wanted = window - len(arrivals)
                for size, args in itertools.islice(executions, num_wanted):
                    function = functions.of(size, batches)
                    arrivals.append((size, self._schedule(function, args)))
                if not arrivals:
                    break
                yield arrivals.popleft()
                sizes.note_taken()
        finally:
            arrivals.close()

    def _run_passes(
        self,
        functions: _Functions,
        passes: WorkersPasses,
        sizes: Sizes,
        first_step: int,
    ) -> Iterator[tuple[int, Result]]:
        """Does the same as `run`, until all workers' datasets are at their ends."""
        window = self._window()
        is_left, is_empty = True, first_step == 0
        while is_left:
            passes.begin_pass()
            ends, arrivals = Ends(self._num_workers, window), self._arrivals(window)
            executions = passes.executions(sizes)
            try:
                while not ends.is_over:
                    for size, args in itertools.islice(executions, ends.num_wanted()):
                        function = functions.of(size, passes)
                        arrivals.append((size, self._schedule(function, args)))
                    arrived = arrivals.popleft_within(ASK_AGAIN_SECS)
                    if arrived is None:
                        ends.add_silence(passes.is_made)
                        continue
                    size, result = arrived
                    # The consumer finds out whether the result is an error, or lost.
                    worker, done = result.told() or (None, size)
                    ends.add(worker, has_ended=done < size)
                    if done:
                        is_empty = False
                        yield done, result
                        sizes.note_taken()
            finally:
                arrivals.close()
            if ends.num_lost:
                logging.warning(
                    "fit: %d of %d workers do not answer at the end of an epoch, which "
                    "ends without them.",
                    ends.num_lost,
                    self._num_workers,
                )
            is_left = passes.has_left(ends.num_lost > 0)
        if is_empty:
            raise ValueError(NO_BATCHES.format(passes.argument))

    def _schedule(self, function: Execution, args: Any) -> Result:
        return Result(self.coordinator, function, tuple(args))

    def _arrivals(self, capacity: int) -> Arrivals:
        strategy = self._model.distribute_strategy
        answers = functools.partial(cluster.tell_who_answers, strategy)
        return Arrivals(capacity, Silence(answers))

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

    def _functions(self, kind: str, batches: Batches) -> _Functions:
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
            [id(variable) for variable in self._model.trainable_variables],
        )
        known = self._kept.by_kind
        if kind not in known or known[kind][0] != key:
            fold_seeds = self._num_workers > 1
            prefetch_rows = self._prefetch_rows
            step = Step(self._model, kind, fold_seeds, self._metrics, prefetch_rows)
            next_number = functools.partial(next, self._kept.numbers)
            functions = _Functions(step, self._metrics, next_number, prefetch_rows)
            known[kind] = (key, functions)
        return known[kind][1]


class _Functions:
    """The functions of executions of one kind of steps."""

    def __init__(
        self,
        step: Step,
        metrics: Metrics,
        next_number: Callable[[], int],
        prefetch_rows: bool,
    ):
        self._step = step
        self._metrics = metrics
        self._next_number = next_number
        self._prefetch_rows = prefetch_rows
        self._by_size: dict[int, Execution] = {}

    def of(self, size: int, batches: Batches) -> Execution:
        """Returns the function of so many steps, made when it is first needed."""
        if size not in self._by_size:
            self._by_size[size] = Execution(
                self._step,
                self._metrics,
                batches,
                size,
                self._next_number,
                self._prefetch_rows,
            )
        return self._by_size[size]


class _Kept:
    """What a model keeps from one training to the next.

    Attributes:
        metrics: the state of its metrics.
        by_kind: the functions of each kind of step, behind what they depend on.
        numbers: numbers of executions, all of which differ.
    """

    def __init__(self):
        self.metrics = NO_METRICS
        self.by_kind: dict[str, tuple[Any, _Functions]] = {}
        self.numbers = itertools.count()
