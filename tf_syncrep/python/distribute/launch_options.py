"""The options of a launch on a local cluster."""

import dataclasses
import numbers
import os
import threading
from collections.abc import Sequence
from typing import Any, TypeGuard

from tf_syncrep.python.distribute import allow, gpus, script, threads, wire
from tf_syncrep.python.distribute.errors import UsageError

WORKER_FAILURE_POLICIES = ("continue", "restart", "stop")
PS_FAILURE_POLICIES = ("restart", "stop")
# Numbers that are None where nothing is asked for.
_OPTIONAL_NUMBERS = ("inter_op_threads", "intra_op_threads", "gpus_per_worker")
MAX_SECS = threading.TIMEOUT_MAX  # Python waits no longer; some 292 years


class LaunchError(UsageError, ValueError):
    """The options of a launch contradict each other, or do not fit the machine.

    Example:
    ```python
    try:
        options = tfs.distribute.LaunchOptions("train.py", num_workers=0)
    except tfs.distribute.LaunchError as error:
        print(error)  # num_workers must be a whole number of at least 1. Received: 0
    ```

    Attributes:
        argument: the argument of LaunchOptions that is wrong, or "".
        reason: what is wrong with it.
    """

    def __init__(self, argument: str, reason: str):
        super().__init__(f"{argument} {reason}".lstrip())
        self.argument = argument
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """What to launch, and how.

    Attributes:
        script: a Python file, a folder with a `__main__.py`, another executable file,
            or, with `module`, the name of a Python module.
        args: the script's arguments.
        num_workers: the number of workers, at least 1.
        num_ps: the number of parameter servers.
        run_script_on: which tasks run the script: "coordinator" (the chief alone),
            "workers" (and the chief, if there is one) or "all" (parameter servers,
            too).
        chief: whether the cluster has a chief task besides the workers; by default only
            if the script runs as the coordinator, which is the chief.
        evaluator: whether an evaluator task, outside the cluster, also runs the script
            and follows the checkpoints. The run does not depend on it.
        module: whether `script` is a module's name, as in `python -m`.
        base_port: the first of consecutive ports; 0 for any that are free.
        on_worker_failure: "continue", "restart" or "stop". The default is "restart" if
            workers are servers: ParameterServerStrategy goes on without a lost worker,
            but waits for it in the end. The default is "stop" if workers run the
            script.
        on_ps_failure: "restart" or "stop". "restart" starts all tasks and the script
            again, which continues from its last checkpoint if it writes them.
        max_restarts: how often each worker, the run, and the evaluator are started
            again under "restart". One more failure ends the run; if it is the
            evaluator's, the run goes on without it.
        ready_timeout_secs: how long the servers have to answer.
        grace_secs: how long the script has to end after a signal was forwarded to it.
            If several tasks run it, also how long the others have after the first has
            ended.
        prefix: whether lines begin with the time and the task's name.
        allow: who may connect to the tasks. By default only this machine; "all", or
            networks such as "10.0.0.0/8", separated by commas, besides this machine.
        rpc_layer: how the tasks talk to each other: "grpc+tfs", by a protocol of our
            own wherever both have it, or "grpc", as TensorFlow does; None leaves it to
            the environment variable TF_SYNCREP_RPC_LAYER, and without it is the first.
        inter_op_threads: how many ops each task may run at the same time, at least 2;
            None leaves it to the environment, to `serve` and to TensorFlow.
        intra_op_threads: how many threads an op may use; None leaves it to the
            environment, and without it workers share this machine's cores.
        gpus_per_worker: how many of this machine's GPUs each worker has for itself (and
            the chief, if it is one of the workers); the other tasks see none. None is
            for one, which several workers share if there are fewer. What counts are
            those in CUDA_VISIBLE_DEVICES, or those that nvidia-smi lists.

    Example:
    ```python
    options = tfs.distribute.LaunchOptions(
        "train.py", args=["--epochs", "3"], num_workers=3, num_ps=2
    )
    ```
    """

    script: str | os.PathLike[str]
    args: Sequence[str] = ()
    num_workers: int = 1
    num_ps: int = 1
    run_script_on: str = "coordinator"
    chief: bool | None = None
    evaluator: bool = False
    module: bool = False
    base_port: int = 0
    on_worker_failure: str | None = None
    on_ps_failure: str = "stop"
    max_restarts: int = 3
    ready_timeout_secs: float = 120.0
    grace_secs: float = 30.0
    prefix: bool = True
    allow: str = allow.LOCAL
    rpc_layer: str | None = None
    inter_op_threads: int | None = None
    intra_op_threads: int | None = None
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # one of NumPy's numbers, which JSON does not accept
            if hasattr(value, "item"):
                object.__setattr__(self, field.name, value.item())
        for argument, least in (
            ("num_workers", 1),
            ("num_ps", 0),
            ("max_restarts", 0),
            ("inter_op_threads", threads.MIN_INTER_OP_THREADS),
            ("intra_op_threads", 1),
            ("gpus_per_worker", 0),
        ):
            value = getattr(self, argument)
            if value is not None or argument not in _OPTIONAL_NUMBERS:
                holds = _is_whole(value) and value >= least
                self._check(argument, holds, f"be a whole number of at least {least}")
        for argument, value, allowed in (
            ("run_script_on", self.run_script_on, tuple(script.SCRIPT_JOBS)),
            ("on_worker_failure", self.worker_failure_policy, WORKER_FAILURE_POLICIES),
            ("on_ps_failure", self.on_ps_failure, PS_FAILURE_POLICIES),
            ("rpc_layer", self.rpc_layer or wire.WIRE, wire.RPC_LAYERS),
        ):
            self._check(argument, value in allowed, f"be one of {', '.join(allowed)}")
        for argument in ("ready_timeout_secs", "grace_secs"):
            value = getattr(self, argument)
            is_number = isinstance(value, numbers.Real)
            holds = is_number and 0 <= value <= MAX_SECS
            rule = f"be a number of seconds from 0 to {MAX_SECS:.0f}"
            self._check(argument, holds, rule)
        if not self.has_chief and self.run_script_on == "coordinator":
            raise LaunchError(
                "chief=False",
                "is for scripts that run on workers or on all: the coordinator is the "
                "chief",
            )
        self._check_gpus()
        num_tasks = self.has_chief + self.num_workers + self.num_ps
        is_room = _is_whole(self.base_port) and 0 <= self.base_port <= 65536 - num_tasks
        self._check(
            "base_port", is_room, f"leave room for {num_tasks} ports up to 65535"
        )
        # What others would take for something else.
        are_args = isinstance(self.args, Sequence)
        are_args = are_args and not isinstance(self.args, (str, bytes))
        rule = "be a sequence of strings, one for each argument"
        self._check("args", are_args, rule)
        is_path = isinstance(self.script, (str, os.PathLike))
        self._check("script", is_path, "be a path or a name")
        self._check("allow", isinstance(self.allow, str), "be a string")
        try:
            script.check(os.fspath(self.script), self.module)
            allow.check(self.allow)
        except UsageError as error:
            raise LaunchError("", str(error)) from None

    def _check_gpus(self) -> None:
        """Raises an error if the machine has fewer GPUs than are asked for."""
        if self.gpus_per_worker:
            num_gpus = len(gpus.of_machine())
            jobs = script.computing_jobs(self.run_script_on)
            num_tasks = self.num_workers + (self.has_chief and "chief" in jobs)
            most = num_gpus // num_tasks
            rule = (
                f"be at most {most}: this machine has {num_gpus} GPUs "
                f"(by {gpus.VISIBLE_VARIABLE} or nvidia-smi) for {num_tasks} tasks"
            )
            self._check("gpus_per_worker", self.gpus_per_worker <= most, rule)

    def _check(self, argument: str, holds: bool, rule: str) -> None:
        """Raises an error if a rule does not hold for an argument."""
        if not holds:
            value = getattr(self, argument)
            raise LaunchError(argument, f"must {rule}. Received: {value!r}")

    @property
    def has_chief(self) -> bool:
        """Whether the cluster has a chief task."""
        return self.run_script_on == "coordinator" if self.chief is None else self.chief

    @property
    def worker_failure_policy(self) -> str:
        """`on_worker_failure` with its default filled in."""
        if self.on_worker_failure is not None:
            return self.on_worker_failure
        return "restart" if self.run_script_on == "coordinator" else "stop"

    def command(self) -> list[str]:
        """Returns the command line that runs the script."""
        return script.command(os.fspath(self.script), self.args, self.module)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
