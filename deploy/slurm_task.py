r"""Makes a task of a TensorFlow cluster of a task of a Slurm step.

    srun --ntasks=7 --distribution=block \
      python deploy/slurm_task.py --workers 4 --ps 2 train.py

Sets TF_CONFIG by what Slurm says of the step, then is `tf-syncrep task`. The first of
Slurm's tasks is the chief, which runs the script; then come workers, then parameter
servers, and with `--evaluator` one more, which follows the checkpoints. With
`--chief-status` the chief's exit status is in a file afterwards.

Not by TensorFlow's SlurmClusterResolver: it sorts node names as text, and so takes task
17 to be on node10 where Slurm has it on node2; and it finds no task where there are no
GPUs.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig


def tf_config(workers: int, ps: int, port: int, evaluator: bool) -> str:
    """TF_CONFIG of this task of the Slurm step.

    The port is that of the first task on each node; others on it have the next ones.
    """
    nodes = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    addresses = [
        f"{node}:{port + task}"
        for node, num_tasks in zip(nodes, _tasks_per_node(), strict=True)
        for task in range(num_tasks)
    ]
    jobs = {"chief": 1, "worker": workers, "ps": ps, "evaluator": int(evaluator)}
    places = [(job, index) for job, size in jobs.items() for index in range(size)]
    cluster: dict[str, list[str]] = {}
    for (job, _), address in zip(places, addresses, strict=True):
        if job != "evaluator":  # It is no part of the cluster.
            cluster.setdefault(job, []).append(address)
    job, index = places[int(os.environ["SLURM_PROCID"])]
    task = {"type": job, "index": index}
    return json.dumps({"cluster": cluster, "task": task, "rpc_layer": "grpc"})


def _tasks_per_node() -> list[int]:
    """The number of tasks on each node, which Slurm writes as "4(x2),3"."""
    numbers = []
    for part in os.environ["SLURM_STEP_TASKS_PER_NODE"].split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        assert match, part
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers


def main() -> None:
    """Sets TF_CONFIG and becomes `tf-syncrep task`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--ps", type=int, required=True)
    parser.add_argument("--evaluator", action="store_true")
    parser.add_argument("--port", type=int, default=22220, help="first port of a node")
    parser.add_argument(
        "--chief-status",
        metavar="FILE",
        help="a file for the chief's exit status, which srun does not tell: it kills "
        "the servers, and has their status",
    )
    parser.add_argument("--run-script-on", default="coordinator", help="as `task` has")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    options = parser.parse_args()
    expected = 1 + options.workers + options.ps + options.evaluator
    if os.environ.get("SLURM_STEP_NUM_TASKS") != str(expected):
        parser.error(
            f"start it by srun --ntasks={expected}: one chief, {options.workers} "
            f"workers, {options.ps} ps{', one evaluator' * options.evaluator}. "
            "Received: SLURM_STEP_NUM_TASKS="
            f"{os.environ.get('SLURM_STEP_NUM_TASKS')}"
        )
    os.environ["TF_CONFIG"] = tf_config(
        options.workers, options.ps, options.port, options.evaluator
    )
    # Not `-m tf_syncrep`, which in a checkout is the source, without its library.
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    program = shutil.which("tf-syncrep", path=os.pathsep.join(folders))
    if program is None:
        parser.error(f"there is no tf-syncrep beside {sys.executable}, nor on PATH")
    command = ["task", "--run-script-on", options.run_script_on, options.script]
    command = [program, *command, *options.args]
    if options.chief_status is not None and os.environ["SLURM_PROCID"] == "0":
        sys.exit(_run_chief(command, options.chief_status))
    if os.environ["SLURM_PROCID"] != "0":
        # Slurm sends it to all tasks of a step at once. The chief writes a checkpoint,
        # for which it needs the others, and they are ended after it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execv(program, command)


def _run_chief(command: list[str], status_file: str) -> int:
    """Runs the chief, passes signals on to it, and writes its status to a file."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    signals = {signal.Signals[name] for name in names}
    # A signal that comes before there is a process waits until it can be passed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    process = subprocess.Popen(
        command,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals),
    )
    for signum in signals:
        signal.signal(signum, lambda number, _: process.send_signal(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    status = process.wait()
    status = status if status >= 0 else 128 - status
    with open(status_file, "w", encoding="utf-8") as file:
        file.write(f"{status}\n")
    return status


if __name__ == "__main__":
    main()
