"""Loops over scheduled steps: training, evaluation and prediction.

The coordinator keeps a window of executions scheduled, and takes up their results as
they come, those of predictions in the order in which it scheduled them. So callbacks
see the steps one after the other, as under `Model.fit`, while the workers are always
some steps ahead, and none has to wait for a slow one.
"""

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_syncrep.python.keras import cluster, compat
from tf_syncrep.python.keras.compat import trainer
from tf_syncrep.python.keras.compat.position import handing_over, initial_position
from tf_syncrep.python.keras.fit.arrivals import Arrivals
from tf_syncrep.python.keras.fit.data import NO_BATCHES, Batches
from tf_syncrep.python.keras.fit.ends import ASK_AGAIN_SECS, Ends
from tf_syncrep.python.keras.fit.exact_state import exact_state
from tf_syncrep.python.keras.fit.metrics import NO_METRICS, Metrics, Results, metrics_of
from tf_syncrep.python.keras.fit.passes import WorkersPasses
from tf_syncrep.python.keras.parts import optimizers_of
from tf_syncrep.python.keras.sync_replicas.rounds import Rounds
from tf_syncrep.python.keras.sync_replicas.rounds_optimizer import (
    ending,
    place,
    rounds_of,
)
from tf_syncrep.python.keras.training_clock import clock_of

# Under which name a model has what is kept with it.
_KEPT = "_tf_syncrep_kept"
# How long an error waits for executions that still run.
_END_SECS = 20.0


class ScheduledSteps:
    """Runs the steps of one model on the workers of its strategy."""

    def __init__(self, model: Any):
        """Wraps a compiled model under a ParameterServerStrategy."""
        self._model = model
        strategy = model.distribute_strategy
        compat.let_closures_end_without_waiting()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._num_workers = cluster.num_tasks("worker")
        self._num_scheduled = itertools.count()
        # Not an attribute by assignment, which Keras would track.
        self._kept = vars(model).setdefault(_KEPT, _Kept())
        self._metrics = NO_METRICS

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """While in it, what steps do to the built model's metrics is added up here."""
        metrics = metrics_of(self._model, self._num_workers)
        if not metrics.has_variables_of(self._kept.metrics):
            self._kept.metrics = metrics
        self._metrics = self._kept.metrics
        with self._metrics.here():
            yield

    def run(
        self,
        kind: str,
        batches: Batches,
        steps_per_execution: int,
        first_step: int = 0,
    ) -> Iterator[tuple[int, int, "_Result"]]:
        """Schedules the executions of one epoch.

        Args:
            kind: "train", "test" or "predict".
            batches: the data.
            steps_per_execution: how many steps to run at once; what they return is
                what the last of them does.
            first_step: how many steps of the epoch are done already.

        Yields:
            For each execution its first and its last step, counted as they are taken
            up, and what gets its result.
        """
        function = self._traced(kind, batches)
        if isinstance(batches, WorkersPasses):
            yield from self._run_passes(
                function, batches, steps_per_execution, first_step
            )
            return
        window = self._window()
        # One worker runs them in order, and two results may be seen at once.
        in_order = kind == "predict" or self._num_workers == 1
        scheduled = collections.deque() if in_order else Arrivals(window)
        executions = batches.executions(steps_per_execution, first_step)
        taken = first_step
        try:
            while True:
                num_wanted = window - len(scheduled)
                for _, size, args in itertools.islice(executions, num_wanted):
                    traced = function.traced(batches.signature(size))
                    scheduled.append((size, self._schedule(function, traced, args)))
                if not scheduled:
                    break
                size, result = scheduled.popleft()
                yield taken, taken + size - 1, result
                taken += size
        finally:
            if isinstance(scheduled, Arrivals):
                scheduled.close()

    def _run_passes(
        self,
        function: "_StepFunction",
        passes: WorkersPasses,
        steps_per_execution: int,
        first_step: int,
    ) -> Iterator[tuple[int, int, "_Result"]]:
        """As `run`, until all workers have come to the ends of their datasets."""
        window, taken = self._window(), first_step
        traced = function.traced(None)
        is_left = True
        while is_left:
            passes.begin_pass()
            ends, arrivals = Ends(self._num_workers, window), Arrivals(window)
            executions = passes.executions(steps_per_execution)
            try:
                while not ends.is_over:
                    for _, size, args in itertools.islice(
                        executions, ends.num_wanted()
                    ):
                        result = self._schedule(function, traced, args)
                        arrivals.append((size, result))
                    arrived = arrivals.popleft_within(ASK_AGAIN_SECS)
                    if arrived is None:
                        ends.add_silence()
                        continue
                    size, result = arrived
                    # The consumer finds out what was lost, or has failed.
                    worker, done = result.told() or (None, size)
                    ends.add(worker, has_ended=done < size)
                    if done:
                        yield taken, taken + done - 1, result
                        taken += done
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
        if taken == 0:
            raise ValueError(NO_BATCHES)

    def _schedule(
        self, function: "_StepFunction", traced: Callable[..., Any], args: Any
    ) -> "_Result":
        number = tf.constant(next(self._num_scheduled), tf.int64)
        return _Result(self.coordinator, function, traced, (number, *args))

    def _window(self) -> int:
        """How many executions to have scheduled at once.

        As many again as there are workers, so that none is idle while results are
        taken up. A gate that waits for several gradients must find them all among them.
        """
        sizes = [self._num_workers]
        for optimizer in optimizers_of(self._model):
            sizes.append(getattr(optimizer, "replicas_to_aggregate", 0))
            sizes.append(getattr(optimizer, "total_num_replicas", 0))
        return self._num_workers + max(sizes)

    def _traced(self, kind: str, batches: Batches) -> "_StepFunction":
        """A function for a kind of step, from earlier if nothing has changed since."""
        step = getattr(self._model, f"{kind}_step")
        key = (
            step,
            batches.signature(1),
            type(batches),
            list(optimizers_of(self._model)),
            self._metrics,
            [id(variable) for variable in self._model.trainable_variables],
        )
        # Not an attribute by assignment, which Keras would track.
        known = self._kept.by_kind
        if kind not in known or known[kind][0] != key:
            fold_seeds = kind == "train" and self._num_workers > 1
            function = _StepFunction(
                self._model, kind, batches, fold_seeds, self._metrics
            )
            known[kind] = (key, function)
        return known[kind][1]


class _Kept:
    """What is kept with a model from one training to the next.

    Attributes:
        metrics: the state of its metrics.
        by_kind: for each kind of step the traced function, behind what it depends on.
    """

    def __init__(self):
        self.metrics = NO_METRICS
        self.by_kind: dict[str, tuple[Any, _StepFunction]] = {}


class _StepFunction:
    """Runs executions on a worker, and packs what comes of them into few tensors."""

    def __init__(
        self,
        model: Any,
        kind: str,
        batches: Batches,
        fold_seeds: bool,
        metrics: Metrics,
    ):
        strategy = model.distribute_strategy
        # A synchronous step waits for its permit before it reads any variable.
        rounds = rounds_of(model.optimizer) if kind == "train" else Rounds()
        make_function = batches.function
        self._num_told = batches.num_told
        self._metrics = metrics
        self._structure: Any = None
        self._functions: list[tuple[Any, Callable[..., Any]]] = []
        self._add = tf.function(self._added, autograph=False)

        @tf.function(autograph=False, reduce_retracing=True)
        def run_step(number, handles, batch):
            def step_on(batch):
                with metrics.steps_on(handles), inlined(model):
                    return getattr(model, f"{kind}_step")(batch)

            with rounds.step(), exact_state(number if fold_seeds else None):
                result = strategy.run(step_on, args=(batch,))
                trainer.count_steps(model, kind)
                return self._returned(result, handles)

        def run(number, *args):
            handles = metrics.handles_of_zeros()
            function = make_function(lambda batch: run_step(number, handles, batch))
            numbers, others = function(*args)
            return tf.concat([numbers, metrics.values(handles)], axis=0), others

        self._run = run

    def traced(self, signature: tuple[Any, ...] | None) -> Callable[..., Any]:
        """A `tf.function` of an execution's number and its arguments.

        Args:
            signature: specs of the arguments, or None.
        """
        for known, function in self._functions:
            if known == signature:
                return function
        if signature is not None:
            signature_of_all = (tf.TensorSpec([], tf.int64), *signature)
        else:
            signature_of_all = None
        function = tf.function(
            self._run, input_signature=signature_of_all, autograph=False
        )
        self._functions.append((signature, function))
        return function

    def _returned(self, result: Any, handles: list[tf.Tensor]) -> Any:
        """What the coordinator needs to know what a step has returned."""
        self._metrics.check(handles)
        leaves = [_as_tensor(leaf) for leaf in tf.nest.flatten(result)]
        self._results = Results(leaves, handles)
        self._structure = tf.nest.map_structure(lambda _: 0, result)
        steps_own = [
            leaf for i, leaf in enumerate(leaves) if i not in self._results.indices
        ]
        self._packing, packed = _packed([*steps_own, *self._results.inputs])
        return packed

    def _added(self, sums: tf.Tensor, inputs: list[Any]) -> Any:
        """Adds what executions have added to metrics, and returns their results."""
        values = self._metrics.add(sums)
        self._result_packing, packed = _packed(self._results.compute(values, inputs))
        return packed

    def told(self, fetched: tuple[Any, list[Any]]) -> tuple[int, ...]:
        """What the execution tells of itself."""
        return tuple(int(x) for x in fetched[0][: self._num_told])

    def take(self, fetched: tuple[Any, list[Any]]) -> Any:
        """Adds to the metrics; returns what the step returned, as NumPy values."""
        numbers, others = fetched
        end = self._num_told + sum(self._packing)
        leaves = _unpacked(self._packing, numbers[self._num_told : end], others)
        if self._metrics is not NO_METRICS:
            num_inputs = len(self._results.inputs)
            leaves, inputs = leaves[: len(leaves) - num_inputs], leaves[-num_inputs:]
            numbers, others = self._add(numbers[end:], inputs if num_inputs else [])
            results = _unpacked(
                self._result_packing, numbers.numpy(), [x.numpy() for x in others]
            )
            for i, x in zip(self._results.indices, results, strict=True):
                leaves.insert(i, x)
        return tf.nest.pack_sequence_as(self._structure, leaves)


@contextlib.contextmanager
def inlined(model: Any) -> Iterator[None]:
    """While in it, a model's methods that are `tf.function`s are plain functions.

    What they did in an earlier trace of a step would belong to that, and what they do
    to metrics would not be seen.
    """
    names = {
        name
        for kind in type(model).__mro__
        for name, x in vars(kind).items()
        if hasattr(x, "python_function") and name not in vars(model)
    }
    plain = {
        name: tf.autograph.to_graph(getattr(model, name).python_function)
        for name in names
    }
    # Not attributes by assignment, which Keras would track.
    vars(model).update(plain)
    try:
        yield
    finally:
        for name in names:
            del vars(model)[name]


def _as_tensor(leaf: Any) -> Any:
    """A tensor for a variable."""
    return tf.convert_to_tensor(leaf) if hasattr(leaf, "assign") else leaf


def _packed(leaves: list[Any]) -> tuple[list[bool], tuple[tf.Tensor, list[Any]]]:
    """Puts all numbers into one tensor, which is fetched in one go.

    Returns:
        Which of the leaves are in it; it and the others.
    """
    packing = [_is_plain_number(leaf) for leaf in leaves]
    numbers = [
        tf.cast(leaf, tf.float64)
        for leaf, is_number in zip(leaves, packing, strict=True)
        if is_number
    ]
    others = [
        leaf for leaf, is_number in zip(leaves, packing, strict=True) if not is_number
    ]
    packed = tf.stack(numbers) if numbers else tf.zeros([0], tf.float64)
    return packing, (packed, others)


def _unpacked(packing: list[bool], numbers: Any, others: Any) -> list[Any]:
    """The leaves that were packed."""
    numbers, others = iter(numbers), iter(others)
    return [next(numbers if is_number else others) for is_number in packing]


def _is_plain_number(leaf: Any) -> bool:
    return (
        isinstance(leaf, tf.Tensor)
        and leaf.shape.rank == 0
        and (leaf.dtype.is_floating or leaf.dtype.is_integer)
    )


class _Result:
    """What an execution has returned, or will."""

    def __init__(
        self,
        coordinator: Any,
        function: _StepFunction,
        traced: Callable[..., Any],
        args: tuple[Any, ...],
    ):
        """Schedules the execution."""
        self._coordinator = coordinator
        self._function = function
        self._traced = traced
        self._args = args
        self._value = coordinator.schedule(traced, args=args)
        self._is_over = False
        self._fetched: Any = None
        self._error: Exception | None = None

    def again(self) -> "_Result":
        """Schedules the same once more."""
        return _Result(self._coordinator, self._function, self._traced, self._args)

    def wait(self) -> None:
        """Waits for the end of the execution, also if it failed."""
        try:
            self._fetched = self._value.fetch()
        except Exception as error:  # In a thread, whose failure nobody would notice.
            self._error = error
        self._is_over = True

    def told(self) -> tuple[int, ...] | None:
        """What the execution tells of itself, when it has come; None if it failed."""
        return None if self._error else self._function.told(self._fetched)

    def fetch(self, if_lost: Any) -> Any:
        """Waits for the end of the execution and returns what the step returned.

        Args:
            if_lost: returned if the worker that ran the execution was lost before its
                result was fetched; what the execution did to variables is done.

        Raises:
            Exception: the execution, or one beside it, failed.
        """
        if not self._is_over:
            self.wait()
        if self._error is None:
            return self._function.take(self._fetched)
        if not isinstance(self._error, tf.errors.OpError):
            raise self._error
        # Raises what really happened, if it was in the execution.
        self._coordinator.join()
        return if_lost


@contextlib.contextmanager
def closing(coordinator: Any, rounds: Rounds) -> Iterator[None]:
    """Leaves nothing behind, however training ends, and raises what ended it.

    After a failure the rounds are closed before the wait for executions that still
    run, as they may wait for an update. That wait ends also where a task does not
    answer.
    """
    with ending(rounds):
        try:
            yield
        except BaseException:
            rounds.close()
            _join(coordinator, _END_SECS)
            raise


def _join(coordinator: Any, secs: float) -> None:
    """Waits for executions that still run, but not for ever."""

    def join() -> None:
        # What they may fail with follows from the failure that is on its way.
        with contextlib.suppress(Exception):
            coordinator.join()

    thread = threading.Thread(target=join, name="fit_join", daemon=True)
    thread.start()
    thread.join(secs)
    if thread.is_alive():
        logging.warning("fit: steps still run after %g s, and are left behind.", secs)


def train(
    steps: ScheduledSteps,
    model: Any,
    batches: Batches,
    callbacks: Any,
    *,
    initial_epoch: int,
    epochs: int,
    validate: Callable[[int], dict[str, Any]],
) -> None:
    """Runs the epochs of `fit`.

    Args:
        steps: runs the steps.
        model: the model.
        batches: training data.
        callbacks: a CallbackList with the model set.
        initial_epoch: the first epoch, unless a callback says otherwise.
        epochs: the epoch before which to end.
        validate: called with each epoch when its training is over; returns what to
            add to its logs.
    """
    rounds, clock = rounds_of(model.optimizer), clock_of(model)
    flush = getattr(model.optimizer, "flush_last", True)
    # Before callbacks ask the gate for anything, and so have it made.
    if model.trainable_variables:
        place(model.optimizer, model.trainable_variables)
    model.stop_training = False
    with handing_over(model):
        callbacks.on_train_begin()
        first_epoch, first_step = initial_position(
            model, batches.num_steps, initial_epoch
        )
    logs: Any = {}
    epoch_logs = None
    for epoch in range(first_epoch, epochs):
        if not batches.begin_epoch(resume=first_step > 0):
            if epoch == initial_epoch:
                raise ValueError(f"{NO_BATCHES}: its work queue has no epoch left")
            logging.warning(
                "fit: the data has no epoch left after %d of %d: training ends.",
                epoch,
                epochs,
            )
            break
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        if epoch == first_epoch:
            # Not earlier: now callbacks have restored whatever there is to restore.
            rounds.start()
        rounds.begin_epoch(first_step)
        executions = steps.run(
            "train", batches, trainer.steps_per_execution(model), first_step
        )
        first_step = 0
        for first, last, result in executions:
            callbacks.on_train_batch_begin(first)
            logs = result.fetch(if_lost=logs)
            with clock.hook():
                callbacks.on_train_batch_end(last, logs)
            if model.stop_training:
                break
        steps.coordinator.join()
        # So that what is validated, saved and reported includes all updates of the
        # epoch.
        if model.stop_training or epoch + 1 == epochs:
            rounds.finish(flush=flush)
        else:
            rounds.drain()
        epoch_logs = {**logs, **validate(epoch)}
        callbacks.on_epoch_end(epoch, epoch_logs)
        if model.stop_training:
            break
    rounds.finish(flush=flush)
    if epochs > 0 and hasattr(model.optimizer, "finalize_variable_values"):
        with model.distribute_strategy.scope():
            model.optimizer.finalize_variable_values(model.trainable_variables)
    callbacks.on_train_end(logs=epoch_logs)


def test(
    steps: ScheduledSteps, model: Any, batches: Batches, callbacks: Any
) -> dict[str, Any]:
    """Runs one evaluation; returns the results by name."""
    model.stop_evaluating = False
    callbacks.on_test_begin()
    logs: Any = {}
    model.reset_metrics()
    executions = steps.run("test", batches, trainer.steps_per_execution(model))
    for first, last, result in executions:
        callbacks.on_test_batch_begin(first)
        logs = _fetched(result)
        callbacks.on_test_batch_end(last, logs)
        if model.stop_evaluating:
            break
    steps.coordinator.join()
    results = _as_numbers(logs)
    callbacks.on_test_end(results)
    return results


def predict(steps: ScheduledSteps, model: Any, batches: Batches, callbacks: Any) -> Any:
    """Predicts, batch by batch in their order; returns a structure of arrays."""
    model.stop_predicting = False
    callbacks.on_predict_begin()
    outputs = []
    for first, last, result in steps.run("predict", batches, 1):
        callbacks.on_predict_batch_begin(first)
        output = _fetched(result)
        callbacks.on_predict_batch_end(last, {"outputs": output})
        outputs.append(output)
        if model.stop_predicting:
            break
    steps.coordinator.join()
    callbacks.on_predict_end()
    if not outputs:
        raise ValueError("There is nothing to predict: x has no batches.")
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *outputs)


def _fetched(result: "_Result") -> Any:
    """What a step returned, which is made again where that is lost with its worker."""
    while (fetched := result.fetch(if_lost=_LOST)) is _LOST:
        result = result.again()
    return fetched


_LOST = object()


def _as_numbers(logs: dict[str, Any]) -> dict[str, Any]:
    """Converts to floats what can be converted."""
    results = {}
    for name, value in logs.items():
        try:
            results[name] = float(value)
        except (TypeError, ValueError):
            results[name] = value
    return results
