"""The bridge from Slurm's variables to TF_CONFIG; no Slurm is run."""

import json
import os
import pathlib
import signal
import sys

import commands
import pytest

pytestmark = pytest.mark.one_version

SCRIPT = pathlib.Path(__file__).parents[2] / "deploy" / "slurm_task.py"
# The variables that srun sets for ten tasks on three nodes.
STEP = {
    "SLURM_STEP_NUM_TASKS": "10",
    "SLURM_STEP_NODELIST": "node[9-11]",
    "SLURM_STEP_TASKS_PER_NODE": "4,3(x2)",
}
CLUSTER = {
    "chief": ["node9:22220"],
    "worker": [
        *("node9:22221", "node9:22222", "node9:22223"),
        *("node10:22220", "node10:22221", "node10:22222"),
    ],
    "ps": ["node11:22220", "node11:22221", "node11:22222"],
}

# Runs the chief of a step, with another script, and then kills the servers.
SRUN = """#!{python}
import os, subprocess, sys
os.environ |= dict(SLURM_STEP_NUM_TASKS="7", SLURM_STEP_NODELIST="node[9-11]",
                   SLURM_STEP_TASKS_PER_NODE="3,2(x2)", SLURM_PROCID="0")
command = sys.argv[sys.argv.index("python") + 1 : sys.argv.index("--sync") - 1]
script = os.environ["SCRIPT"]
if script:
    command += ["--run-script-on", "all", script]
    subprocess.run([sys.executable, *command])
sys.exit(137)
"""


@pytest.fixture
def nodes(tmp_path):
    """A folder of programs, with one that knows the nodes' names."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames node[9-11]" ] && '
        'printf "node9\\nnode10\\nnode11\\n"\n'
    )
    scontrol.chmod(0o755)
    return tmp_path


@pytest.fixture
def run(tmp_path, nodes):
    """Runs the bridge around a script that prints its TF_CONFIG."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['TF_CONFIG'], *sys.argv[1:])")

    def run(environment, ps=3, options=()):
        # All tasks run the script: no server answers at these addresses.
        options = ("--ps", ps, *options, "--run-script-on", "all", "--workers", 6)
        return commands.run(
            *(*options, script, "--its-own", 1),
            program=[sys.executable, str(SCRIPT)],
            env={"PATH": f"{nodes}:{os.environ['PATH']}", **environment},
        )

    return run


@pytest.mark.parametrize(
    ("process", "job", "index", "ps"),
    [
        *((0, "chief", 0, 3), (4, "worker", 3, 3), (7, "ps", 0, 3), (9, "ps", 2, 3)),
        (9, "evaluator", 0, 2),  # It is the last task.
    ],
)
def test_each_task_has_its_place_in_slurms_order(run, process, job, index, ps):
    options = ["--evaluator"] if job == "evaluator" else []
    result = run(STEP | {"SLURM_PROCID": str(process)}, ps, options)
    assert result.process.returncode == 0, result.output
    config, _, args = result.stdout[0].rpartition("}")
    assert json.loads(config + "}") == {
        "cluster": CLUSTER | {"ps": CLUSTER["ps"][:ps]},
        "task": {"type": job, "index": index},
        "rpc_layer": "grpc",
    }
    assert args.split() == ["--its-own", "1"]


@pytest.mark.parametrize("tasks", ["6", None])
def test_another_number_of_tasks_is_refused(run, tasks):
    result = run({} if tasks is None else {"SLURM_STEP_NUM_TASKS": tasks})
    assert result.process.returncode == 2
    assert (
        "start it by srun --ntasks=10: one chief, 6 workers, 3 ps. "
        f"Received: SLURM_STEP_NUM_TASKS={tasks}" in result.output
    )


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 15)", 143),
        (None, 137),  # The chief did not come as far as its end.
    ],
)
def test_the_jobs_status_is_the_chiefs(nodes, source, status):
    (nodes / "srun").write_text(SRUN.format(python=sys.executable))
    (nodes / "srun").chmod(0o755)
    (nodes / "deploy").symlink_to(SCRIPT.parent)
    (nodes / "chief_status.7").write_text("5\n")  # as of the job's run before
    (nodes / "script.py").write_text(source or "")
    result = commands.run(
        SCRIPT.with_name("slurm.sbatch"),
        program=["bash"],
        env={
            "PATH": f"{nodes}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SCRIPT": "script.py" if source else "",
        },
        cwd=nodes,
    )
    assert result.process.returncode == status, result.output
    assert list(nodes.glob("chief_status*")) == []


def test_signals_reach_the_chief(nodes):
    script = nodes / "script.py"
    script.write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    status = nodes / "status"
    with commands.Command(
        *("--workers", 6, "--ps", 3, "--run-script-on", "all"),
        *("--chief-status", status, script),
        program=[sys.executable, str(SCRIPT)],
        env={
            "PATH": f"{nodes}:{os.environ['PATH']}",
            "SLURM_PROCID": "0",
            **STEP,
        },
    ) as command:
        command.wait_for_line("ready")
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == 5
    assert status.read_text() == "5\n"


@pytest.mark.parametrize(("process", "ignored"), [("0", False), ("4", True)])
def test_the_chief_alone_hears_of_the_steps_end(nodes, process, ignored):
    script = nodes / "script.py"
    script.write_text(
        "import signal\n"
        "print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, flush=True)\n"
    )
    result = commands.run(
        *("--workers", 6, "--ps", 3, "--run-script-on", "all", script),
        program=[sys.executable, str(SCRIPT)],
        env={"PATH": f"{nodes}:{os.environ['PATH']}", "SLURM_PROCID": process, **STEP},
    )
    assert result.stdout == [str(ignored)], result.output
