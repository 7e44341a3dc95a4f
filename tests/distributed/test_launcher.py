"""`tf-syncrep launch`: what runs where, with which output and which status."""

import os
import re
import signal
import stat
import subprocess
import sys

import commands
import pytest

# Without servers nothing imports TensorFlow, and a launch takes a fraction of a second.
WORKERS_ONLY = ("launch", "--run-script-on", "workers", "--ps", 0, "--workers")


@pytest.fixture
def script(tmp_path):
    """A function that writes a script and returns its path."""

    def write(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return path

    return write


def messages(lines):
    """Lines without their time, so that they can be compared."""
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines]


@pytest.mark.parametrize("status", [0, 7])
def test_returns_the_status_of_the_script(script, status):
    path = script("import sys; sys.exit(int(sys.argv[1]))")
    result = commands.run(*WORKERS_ONLY, 1, path, status)
    assert result.process.returncode == status


def test_returns_128_plus_the_signal_that_killed_the_script_and_names_it(script):
    path = script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    result = commands.run(*WORKERS_ONLY, 1, path)
    assert result.process.returncode == 128 + signal.SIGSEGV
    assert re.fullmatch(
        r"launch   \| worker-0 \(pid \d+\) was killed by SIGSEGV",
        messages(result.stderr)[-1],
    )


def test_each_task_gets_its_own_tf_config_and_the_arguments(script):
    path = script("import os, sys; print(os.environ['TF_CONFIG'], sys.argv[1:])")
    result = commands.run(
        *WORKERS_ONLY,
        2,
        "--chief",
        "--base-port",
        0,
        path,
        "--workers",
        "-x",
        "--",
        "y",
    )
    assert result.process.returncode == 0
    lines = sorted(messages(result.stdout))
    address = r'"127\.0\.0\.1:\d+"'
    for line, name, task in zip(
        lines,
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


def test_keeps_standard_output_and_standard_error_apart(script):
    path = script("import sys; print('to out'); print('to err', file=sys.stderr)")
    result = commands.run(*WORKERS_ONLY, 1, path)
    assert messages(result.stdout) == ["worker-0 | to out"]
    assert "worker-0 | to err" in messages(result.stderr)


def test_says_the_process_id_of_each_task_that_runs_the_script(script):
    path = script("import os; print('pid', os.getpid())")
    result = commands.run(*WORKERS_ONLY, 2, path)
    said = re.findall(r"(worker-\d) runs the script \(pid (\d+)\)", result.output)
    assert sorted(said) == sorted(
        re.fullmatch(r"(worker-\d) \| pid (\d+)", line).groups()
        for line in messages(result.stdout)
    )


@pytest.mark.parametrize(
    ("source", "args", "noted"),
    [
        ("", ["--workers", 2, "--ps=1", "--ps=2", "--epochs=3"], ["--workers", "--ps"]),
        ("", ["x", "--", "--workers", 2], []),
        ("parser.add_argument('--workers')", ["--workers", 2, "--ps=1"], ["--ps"]),
        ("flags.DEFINE_integer('workers', 1, '')", ["--workers=2"], []),
    ],
)
def test_an_option_of_launch_after_a_script_that_does_not_know_it_is_noted(
    script, source, args, noted
):
    path = script(f"# {source}\nimport sys; print(sys.argv[1:])")
    result = commands.run(*WORKERS_ONLY, 1, path, *args)
    assert result.process.returncode == 0
    assert messages(result.stdout) == [f"worker-0 | {list(map(str, args))}"]
    assert [line for line in result.stderr if "note:" in line] == [
        f"tf-syncrep launch: note: {option} stands after the script, which gets it; "
        "options of launch stand before the script"
        for option in noted
    ]


def test_tasks_that_write_nothing_for_long_get_a_hint_once(script):
    path = script(
        "import os, time\n"
        "if '\"type\": \"ps\"' in os.environ['TF_CONFIG']:\n"
        "    time.sleep(1000)\n"
        "time.sleep(1.5)\n"
    )
    program = (
        "import sys\n"
        "from tf_syncrep.python.distribute import launcher\n"
        "launcher._SILENCE_SECS = 0.3\n"
        "options = launcher.LaunchOptions(sys.argv[1], run_script_on='all')\n"
        "sys.exit(launcher.launch(options))\n"
    ).replace("launcher.launch(", "launcher.launch_here(")
    result = commands.run(
        path, program=[sys.executable, "-c", program], cwd=path.parent
    )
    assert result.process.returncode == 0
    assert [line for line in messages(result.stderr) if "has written" in line] == [
        "launch   | no task has written a line for 0.3 s. If the script makes a "
        "tf.distribute.ParameterServerStrategy, which one coordinator does while the "
        "workers serve, leave out --run-script-on"
    ]


def test_no_prefix_passes_lines_on_as_they_are(script):
    path = script("print('plain')")
    result = commands.run(*WORKERS_ONLY, 1, "--no-prefix", path)
    assert result.stdout == ["plain"]


def test_shows_a_line_when_it_is_written_and_not_at_the_end(script):
    path = script("print('first'); input()")
    with commands.Command(*WORKERS_ONLY, 1, path, stdin=subprocess.PIPE) as command:
        command.wait_for_line(r"worker-0 \| first$")
        command.process.stdin.write("go\n")
        command.process.stdin.flush()
        assert command.wait() == 0


def test_empty_lines_are_kept(script):
    result = commands.run(*WORKERS_ONLY, 1, script("print('a\\n\\nb')"))
    assert messages(result.stdout) == ["worker-0 | a", "worker-0 | ", "worker-0 | b"]


def test_what_the_locale_cannot_show_is_replaced(script):
    path = script("import os; os.write(1, '\u00e9 and more\\n'.encode())")
    result = commands.run(*WORKERS_ONLY, 1, path, env={"PYTHONIOENCODING": "ascii"})
    assert messages(result.stdout) == ["worker-0 | ? and more"]
    assert result.process.returncode == 0


def test_output_that_is_not_utf8_and_a_progress_bar_are_shown(script):
    path = script(
        r"import os; os.write(1, b'\xff bytes\n'); os.write(1, b'1/2\r2/2\nno end')"
    )
    result = commands.run(*WORKERS_ONLY, 1, path)
    assert messages(result.stdout) == [
        "worker-0 | \ufffd bytes",
        "worker-0 | 2/2",
        "worker-0 | no end",
    ]


@pytest.mark.parametrize(
    ("env", "coloured"), [({"NO_COLOR": None}, True), ({"NO_COLOR": "1"}, False)]
)
def test_colours_prefixes_on_a_terminal_unless_told_not_to(script, env, coloured):
    path = script("print('hello')")
    master, slave = os.openpty()
    process = subprocess.Popen(
        [commands.console_script(), *map(str, (*WORKERS_ONLY, 2, path))],
        env={k: v for k, v in (os.environ | env).items() if v is not None},
        stdin=subprocess.DEVNULL,
        stdout=slave,
    )
    os.close(slave)
    assert process.wait(commands.DEADLINE_SECS) == 0
    shown = os.read(master, 10000)
    os.close(master)
    assert shown.endswith(b"hello\r\n")
    assert (b"\x1b[36m" in shown) == coloured


def test_no_colours_into_a_pipe_not_even_those_of_the_script(script):
    path = script("print('\x1b[1m\x1b[38;5;4mhello\x1b[0m\x1b[K')")
    result = commands.run(*WORKERS_ONLY, 1, path)
    assert "\x1b" not in result.output
    assert messages(result.stdout) == ["worker-0 | hello"]


def test_logs_that_a_coordinator_frees_what_it_cannot_are_left_out(script):
    freed = (
        "kernel_and_device.cc:101] Ignoring error status when releasing multi-device "
        "function handle UNIMPLEMENTED: Releasing a multi-device component handle on a "
        "remote device is not yet implemented."
    )
    old = f"2026-01-02 03:04:05.6: I tensorflow/core/common_runtime/eager/{freed}"
    lines = [f"I0000 00:00:1.2    3 {freed}", old, f"E0000 {freed}", f"{old} And more"]
    path = script(f"import sys; sys.stderr.write({chr(10).join(lines)!r})")
    result = commands.run(*WORKERS_ONLY, 1, path, env={"TF_CPP_MIN_LOG_LEVEL": "0"})
    shown = [line for line in messages(result.stderr) if line.startswith("worker")]
    assert shown == [f"worker-0 | {line}" for line in lines[2:]]


def test_runs_a_module(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys; print(__name__, sys.argv[1:])")
    result = commands.run(
        *WORKERS_ONLY, 1, "-m", "package.train", "-m", "x", cwd=tmp_path
    )
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
        "print([os.environ[v] for v in ('MINE', 'no_proxy', 'PYTHONUNBUFFERED')])"
    )
    result = commands.run(
        *WORKERS_ONLY, 1, path, env={"MINE": "yes", "no_proxy": "a.example"}
    )
    assert messages(result.stdout) == ["worker-0 | ['yes', 'a.example,127.0.0.1', '1']"]


def test_a_free_base_port_numbers_the_tasks(script):
    path = script("import os; print(os.environ['TF_CONFIG'])")
    # Ports below the range from which the system takes those for outgoing connections.
    for base in range(20000, 32000, 10):
        result = commands.run(*WORKERS_ONLY, 2, "--base-port", base, path)
        if result.process.returncode != 2:
            break
    assert result.process.returncode == 0
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
        assert command.wait() == 0
        assert command.pids() == []
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
        assert command.wait() == 0
        assert command.pids() == []
    assert re.search(
        r"worker-1 \(pid \d+\) did not end within 0\.2 s of worker-0; ending it",
        command.output,
    )


FAILS_IN_WORKER_1 = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    if not os.path.exists("failed"):
        open("failed", "w").close()
        sys.exit(3)
    open("restarted", "w").close()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def test_a_worker_whose_script_fails_ends_the_run(script):
    path = script(FAILS_IN_WORKER_1)
    result = commands.run(*WORKERS_ONLY, 2, path, "never", cwd=path.parent)
    assert result.process.returncode == 3
    assert re.fullmatch(
        r"launch   \| worker-1 \(pid \d+\) exited with status 3; ending the run",
        messages(result.stderr)[-1],
    )


def test_going_on_without_a_worker_on_request(script):
    path = script(FAILS_IN_WORKER_1)
    result = commands.run(
        *WORKERS_ONLY, 2, "--on-worker-failure", "continue", path, "failed",
        cwd=path.parent,
    )  # fmt: skip
    assert result.process.returncode == 0
    assert re.search(
        r"worker-1 \(pid \d+\) exited with status 3; going on without it", result.output
    )


def test_restarting_a_worker_on_request(script):
    path = script(FAILS_IN_WORKER_1)
    result = commands.run(
        *WORKERS_ONLY, 2, "--on-worker-failure", "restart", path, "restarted",
        cwd=path.parent,
    )  # fmt: skip
    assert result.process.returncode == 0
    assert re.search(
        r"worker-1 \(pid \d+\) exited with status 3; restart 1 of 3, pid \d+",
        result.output,
    )


def test_a_worker_that_fails_more_often_than_it_may_be_restarted_ends_the_run(script):
    path = script(
        "import json, os, sys, time\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1:\n"
        "    with open('starts', 'a') as starts:\n"
        "        starts.write('x')\n"
        "    sys.exit(3)\n"
        "time.sleep(1000)\n"
    )
    result = commands.run(
        *WORKERS_ONLY, 2, "--on-worker-failure", "restart", "--max-restarts", 2, path,
        cwd=path.parent,
    )  # fmt: skip
    assert result.process.returncode == 3
    assert re.search(
        r"worker-1 \(pid \d+\) exited with status 3 after 2 restarts; ending the run",
        result.output,
    )
    assert (path.parent / "starts").read_text() == "xxx"
