"""One task of a cluster that a scheduler started, by the same command for all."""

import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from tf_syncrep.python.distribute import allow, cluster, script, server, tunnels
from tf_syncrep.python.distribute.errors import UsageError
from tf_syncrep.python.distribute.launch_options import MAX_SECS
from tf_syncrep.python.distribute.readiness import grpc_answers

UNREADY = 1  # The status if other tasks did not answer in time.
_PROBE_INTERVAL_SECS = 0.5


def run(
    path: str,
    args: Sequence[str],
    *,
    module: bool,
    run_script_on: str,
    ready_timeout_secs: float,
    allowed: str,
    tls_files: str | None,
    tls_base_port: int,
) -> NoReturn:
    """Does the work of TF_CONFIG's task, in place of this process.

    It serves the task, or waits until all served tasks answer and then runs the script:
    schedulers start the tasks of a cluster in any order.

    `path`: the script; see `script.command`. `run_script_on`: a key of
    `script.SCRIPT_JOBS`. An evaluator also runs the script, but waits for no task,
    since it follows files. `allowed`: who may connect to the task, as in `--allow`.

    The script finds a cluster without evaluator. If it is a coordinator's, which uses
    ParameterServerStrategy, all jobs are left out that this does not know, and a master
    is a chief; scripts in other tasks may have jobs of their own.
    """
    if not 0 <= ready_timeout_secs <= MAX_SECS:
        raise UsageError(
            f"--ready-timeout must be a number of seconds from 0 to {MAX_SECS:.0f}. "
            f"Received: {ready_timeout_secs}"
        )
    script.check(path, module)
    task = cluster.read_tf_config()
    environ = allow.environment(allowed, task, os.environ)
    is_coordinator = run_script_on == "coordinator"
    if is_coordinator:
        cluster.for_strategy(task)  # says what is wrong, in any task
    jobs = script.SCRIPT_JOBS[run_script_on]
    served = [job for job in server.SERVED_TYPES if job not in jobs]
    if task.task_type in served:
        server.serve(allowed, tls_files, tls_base_port)
    if tls_files is not None:
        environ = tunnels.open_for(task, tls_files, allowed, tls_base_port)
        task = cluster.read_tf_config(environ)
        environ = allow.environment(allow.LOCAL, task, environ)
    seen, left_out = (
        cluster.for_strategy(task)
        if is_coordinator
        else cluster.without_jobs(task, [cluster.EVALUATOR])
    )
    if left_out:
        print(f"tf-syncrep task: {left_out}", flush=True)
    if seen != task:
        environ["TF_CONFIG"] = cluster.rewritten(environ["TF_CONFIG"], seen)
    if task.task_type != cluster.EVALUATOR:
        _wait_for(
            [address for job in served for address in task.cluster.get(job, ())],
            ready_timeout_secs,
        )
    command = script.command(path, args, module)
    sys.stdout.flush()
    try:
        os.execve(command[0], command, environ)
    except OSError as error:
        raise UsageError(
            f"the script {path!r} cannot be executed: {error.strerror}"
        ) from None


def _wait_for(addresses: Sequence[str], timeout_secs: float) -> None:
    """Waits until servers answer, and ends the process if they do not."""
    begin = time.monotonic()
    silent = list(addresses)
    while silent := [address for address in silent if not grpc_answers(address)]:
        if time.monotonic() - begin > timeout_secs:
            print(
                f"tf-syncrep task: error: no answer within {timeout_secs:g} s from "
                f"{', '.join(silent)}; each must run and let this host in (--allow)",
                file=sys.stderr,
            )
            sys.exit(UNREADY)
        time.sleep(_PROBE_INTERVAL_SECS)
    if addresses:
        print(
            f"tf-syncrep task: {len(addresses)} servers answer after "
            f"{time.monotonic() - begin:.1f} s; the script begins",
            flush=True,
        )
