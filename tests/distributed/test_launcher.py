"""`tf-syncrep launch`: what runs where, and its exit status."""

import contextlib
import re
import signal
import stat
import sys

import commands
import pytest

from tf_syncrep.python.distribute import ports, threads

# Without servers nothing imports TensorFlow, and a launch takes a fraction of a second.
WORKERS_ONLY = ("launch", "--run-script-on", "workers", "--ps", 0, "--workers")

IGNORES_ENDS_OF_CHILDREN = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


def messages(lines):
    """Lines without their time, so that they can be compared."""
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines]


def test_returns_128_plus_the_signal_that_killed_the_script_and_names_it(script):
    path = script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    result = commands.run(*WORKERS_ONLY, 1, path)
    assert result.process.returncode == 128 + signal.SIGSEGV
    assert re.fullmatch(
        r"launch   \| worker-0 \(pid \d+\) was killed by SIGSEGV",
        messages(result.stderr)[-1],
    )


@pytest.mark.parametrize(
    "launched_by",
    [
        # What a parent ignores, and what it has closed, is so for its children as well.
        [sys.executable, "-c", IGNORES_ENDS_OF_CHILDREN],
        ["sh", "-c", 'exec "$@" >&-', "sh"],
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"],
    ],
    ids=["ignored", "no_output", "no_streams"],
)
def test_returns_the_scripts_status_whatever_started_it(script, launched_by):
    path = script("import sys; print('out'); print('err', file=sys.stderr); exit(3)")
    program = [*launched_by, commands.CONSOLE_SCRIPT]
    result = commands.run(*WORKERS_ONLY, 1, path, program=program)
    assert result.process.returncode == 3
    assert "Traceback" not in result.output


def test_each_task_gets_its_own_tf_config_and_the_arguments(script):
    path = script("import os, sys; print(os.environ['TF_CONFIG'], sys.argv[1:])")
    options = (2, "--chief", "--base-port", 0)
    result = commands.run(
        *WORKERS_ONLY, *options, path, "--", "--workers", "-x", "--", "y"
    )
    assert result.process.returncode == 0
    address = r'"127\.0\.0\.1:\d+"'
    for line, name, task in zip(
        sorted(messages(result.stdout)),
        ["chief   ", "worker-0", "worker-1"],
        ['"chief", "index": 0', '"worker", "index": 0', '"worker", "index": 1'],
        strict=True,
    ):
        assert re.fullmatch(
            rf'{name} \| {{"cluster": {{"chief": \[{address}\], '
            rf'"worker": \[{address}, {address}\]}}, "task": {{"type": {task}}}, '
            r'"rpc_layer": "grpc"} \[\'--workers\', \'-x\', \'--\', \'y\'\]',
            line,
        )


def test_says_the_process_id_of_each_task_that_runs_the_script(script):
    path = script("import os; print('pid', os.getpid())")
    result = commands.run(*WORKERS_ONLY, 2, path)
    said = re.findall(r"(worker-\d) runs the script \(pid (\d+)\)", result.output)
    assert sorted(said) == sorted(
        re.fullmatch(r"(worker-\d) \| pid (\d+)", line).groups()
        for line in messages(result.stdout)
    )


@pytest.mark.parametrize(
    ("args", "refused"),
    [
        (["--workers", "2", "--ps=1", "--ps=2", "--e=3"], "--workers, --ps"),
        (["x", "--no-chief"], "--no-chief"),
        (["x", "--", "--workers", "2"], None),
        (["--", "--workers", "2"], None),
        (["--help", "-m", "--module"], None),
    ],
)
def test_an_option_of_launch_after_the_script_is_refused(script, args, refused):
    path = script("import sys; print(sys.argv[1:])")
    result = commands.run(*WORKERS_ONLY, 1, path, *args)
    if refused is None:
        got = args[1:] if args[0] == "--" else args
        assert messages(result.stdout) == [f"worker-0 | {got}"]
        return
    words = " ".join(args)
    assert result.stderr == [
        f"tf-syncrep launch: error: {refused} must stand before the script. Received: "
        f"{path} {words}. If the script is to get them: {path} -- {words}"
    ]
    assert (result.stdout, result.process.returncode) == ([], 2)


def test_tasks_that_write_nothing_for_long_get_a_hint_once(script):
    path = script(
        "import os, time\n"
        "if '\"type\": \"ps\"' in os.environ['TF_CONFIG']:\n"
        "    time.sleep(1000)\n"
        "time.sleep(1.5)\n"
    )
    # It is imported by the command's name, so that TensorFlow is not imported. The
    # package may be the source tree's, which has no library to preload.
    program = (
        "import sys\n"
        "sys.argv[0] = 'tf-syncrep'\n"
        "from tf_syncrep.python.distribute import launcher\n"
        "launcher._SILENCE_SECS = 0.3\n"
        "options = launcher.LaunchOptions(\n"
        "    sys.argv[1], run_script_on='all', allow='all'\n"
        ")\n"
        "sys.exit(launcher.launch_here(options))\n"
    )
    result = commands.run(path, program=[sys.executable, "-c", program])
    assert result.process.returncode == 0
    assert [line for line in messages(result.stderr) if "has written" in line] == [
        "launch   | no task has written a line for 0.3 s. If the script makes a "
        "tf.distribute.ParameterServerStrategy, which one coordinator does while the "
        "workers serve, leave out --run-script-on"
    ]


def test_runs_a_module(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys; print(__name__, sys.argv[1:])")
    words = ("-m", "package.train", "-m", "x")
    result = commands.run(*WORKERS_ONLY, 1, *words, cwd=tmp_path)
    assert messages(result.stdout) == ["worker-0 | __main__ ['-m', 'x']"]
    assert result.process.returncode == 0


def test_runs_an_executable_that_is_not_python(tmp_path):
    path = tmp_path / "train"
    path.write_text("#!/bin/sh\necho shell $1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    result = commands.run(*WORKERS_ONLY, 1, path, "me")
    assert messages(result.stdout) == ["worker-0 | shell me"]


def test_the_script_inherits_the_environment_but_no_proxy_for_loopback(script):
    path = script(
        "import os\n"
        "print([os.environ[v] for v in ('MINE', 'no_proxy', 'PYTHONUNBUFFERED')])\n"
        "print([os.environ[v] for v in ('no_grpc_proxy', 'NO_PROXY')])\n"
        "print([os.environ.get(f'TF_NUM_{v}OP_THREADS') for v in ('INTER', 'INTRA')])"
    )
    env = {"MINE": "yes", "no_proxy": "a.example", "no_grpc_proxy": ""}
    env["NO_PROXY"] = "127.0.0.1"
    result = commands.run(*WORKERS_ONLY, 1, "--inter-op-threads", 2, path, env=env)
    assert messages(result.stdout) == [
        "worker-0 | ['yes', 'a.example,127.0.0.1', '1']",
        "worker-0 | ['127.0.0.1', '127.0.0.1']",
        f"worker-0 | ['2', '{threads.share_of_cores(1)}']",
    ]


def _free_neighbours() -> int:
    """The first of two ports that are free, below those of outgoing connections."""
    for base in range(20000, 32000, 10):
        with contextlib.suppress(ports.PortUnavailableError):
            for port in (base, base + 1):
                ports.check_port_is_free(port)
            return base
    raise AssertionError("no two ports are free")


def test_a_free_base_port_numbers_the_tasks(script):
    path = script("import os; print(os.environ['TF_CONFIG'])")
    base = _free_neighbours()
    result = commands.run(*WORKERS_ONLY, 2, "--base-port", base, path)
    assert result.process.returncode == 0, result.output
    assert f'"127.0.0.1:{base}", "127.0.0.1:{base + 1}"' in result.stdout[0]


def test_waits_for_all_workers_and_stops_the_script_that_serves(script):
    path = script(
        "import json, os, time\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']\n"
        "print('began', flush=True)\n"
        "open(task['type'] + str(task['index']), 'w').close()\n"
        "if task['type'] == 'ps':\n"
        "    time.sleep(1000)\n"
        "while not (os.path.exists('worker1') and os.path.exists('ps0')):\n"
        "    time.sleep(0.01)\n"
        "print('ended')\n"
    )
    with commands.Command(
        "launch", "--run-script-on", "all", "--workers", 2, path, cwd=path.parent
    ) as command:
        assert command.wait_for_all() == 0
    assert sorted(messages(command.stdout)) == [
        "ps-0     | began",
        "worker-0 | began",
        "worker-0 | ended",
        "worker-1 | began",
        "worker-1 | ended",
    ]


def test_other_tasks_are_not_waited_for_without_end_after_the_chief(script):
    path = script(
        "import json, os, time\n"
        "time.sleep(json.loads(os.environ['TF_CONFIG'])['task']['index'] * 1000)\n"
    )
    with commands.Command(*WORKERS_ONLY, 2, "--grace", 0.2, path) as command:
        assert command.wait_for_all() == 0
    assert re.search(
        r"worker-1 \(pid \d+\) did not end within 0\.2 s of worker-0; ending it",
        command.output,
    )


# Worker 1 fails this often, and worker 0 waits for a file.
FAILS_IN_WORKER_1 = """
import json, os, sys, time
failures, awaited = sys.argv[1:]
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    with open("starts", "a") as starts:
        starts.write("x")
    if os.path.getsize("starts") <= int(failures):
        sys.exit(3)
    open("restarted", "w").close()
while not os.path.exists(awaited):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("options", "failures", "awaited", "status", "said", "starts"),
    [
        ([], 1, "never", 3, "; ending the run", "x"),
        (["continue"], 1, "starts", 0, "; going on without it", "x"),
        (["restart"], 1, "restarted", 0, r"; restart 1 of 3, pid \d+", "xx"),
        (
            ["restart", "--max-restarts", 2],
            9,
            "never",
            3,
            " after 2 restarts; ending the run",
            "xxx",
        ),
    ],
)
def test_a_worker_whose_script_fails(
    script, options, failures, awaited, status, said, starts
):
    path = script(FAILS_IN_WORKER_1)
    policy = ("--on-worker-failure", *options) if options else ()
    result = commands.run(
        *(*WORKERS_ONLY, 2, *policy, path, failures, awaited), cwd=path.parent
    )
    assert result.process.returncode == status
    what = rf"launch   \| worker-1 \(pid \d+\) exited with status 3{said}"
    lines = messages(result.stderr)
    assert len([line for line in lines if re.fullmatch(what, line)]) == 1, lines
    assert (path.parent / "starts").read_text() == starts
