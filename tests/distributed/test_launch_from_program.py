"""`tfs.distribute.launch`: the launcher for programs, whatever threads they have."""

import ctypes
import os
import signal
import socket
import subprocess
import sys

import commands
import programs
import pytest

import tf_syncrep as tfs
from tf_syncrep.python.distribute import script, supervision

# It is like real programs: TensorFlow is loaded and has threads, and there is another
# thread. It launches once in that thread, then in the main thread.
PROGRAM = """
import sys, threading
import tensorflow as tf
import tf_syncrep as tfs

tf.linalg.matmul(tf.ones([500, 500]), tf.ones([500, 500])).numpy()
threading.Thread(target=threading.Event().wait, daemon=True).start()

def launch(*args):
    options = tfs.distribute.LaunchOptions(
        script=sys.argv[1], args=args, run_script_on="workers",
        num_workers=2, num_ps=0, grace_secs=5.0,
    )
    print("launched", tfs.distribute.launch(options), flush=True)

thread = threading.Thread(target=launch, args=("it's",))
thread.start()
thread.join()
launch("ends")
launch("waits")
"""
SCRIPT = """
import os, sys, time
try:
    print("begins", sys.argv[1:], flush=True)
    if "waits" in sys.argv:
        time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(9)
"""


@pytest.fixture
def program(tmp_path):
    """A running program that launches, watched like the command."""
    for name, source in (("program.py", PROGRAM), ("script.py", SCRIPT)):
        (tmp_path / name).write_text(source)
    with commands.Command(
        tmp_path / "program.py", tmp_path / "script.py", program=[sys.executable]
    ) as program:
        program.wait_for_line("begins .'waits'.", occurrence=2)
        yield program


def test_runs_a_script_from_any_thread_passes_signals_on_and_returns_the_status(
    program,
):
    program.process.send_signal(signal.SIGINT)
    assert program.wait_for_all() == 0, program.output
    assert program.output.count("interrupted") == 2
    assert [x.partition("begins ")[2] for x in program.stdout if "begins" in x] == [
        *2 * ['["it\'s"]'],
        *2 * ["['ends']"],
        *2 * ["['waits']"],
    ]
    launched = [line for line in program.stdout if "launched" in line]
    assert launched == ["launched 0", "launched 0", "launched 9"]


@pytest.mark.parametrize("way", ["command", "supervised"])
def test_handler_of_an_embedding_program_stays(way):
    assert programs.call(handler_stays, way)


def handler_stays(way):
    """Whether a handler that C has set, and Python does not know, outlives a run."""
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)
    libc.signal(signal.SIGHUP, handler)
    getsignal = signal.getsignal
    signal.getsignal = lambda x: None if x == signal.SIGHUP else getsignal(x)
    if way == "command":
        supervision.run_command(["true"])
    else:
        supervision.run_supervised(lambda parent_pipe: 0)
    address = ctypes.cast(handler, ctypes.c_void_p).value
    return libc.signal(signal.SIGHUP, handler) == address


def test_nothing_is_left_when_the_program_is_killed(program):
    program.process.send_signal(signal.SIGKILL)
    program.wait_until_no_process_is_left()


@pytest.mark.parametrize("is_safe", [False, True])
def test_own_processes_find_modules_by_the_path_but_none_in_the_current_folder(
    tmp_path, is_safe
):
    for folder in ("current", "first"):
        package = tmp_path / folder / "tf_syncrep" / "python"
        package.mkdir(parents=True)
        for of in (package, package.parent):
            (of / "__init__.py").touch()
        source = f"main = lambda: print({folder!r})"
        (package / "where.py").write_text(source, encoding="utf-8")
    found = subprocess.run(
        script.own_command("where"),
        cwd=tmp_path / "current",
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path / "first"),
            "PYTHONSAFEPATH": "1" if is_safe else "",
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    assert found.stdout == b"first\n"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("run_script_on", "chief"),
        ("on_worker_failure", "ignore"),
        ("on_ps_failure", "continue"),
    ],
)
def test_unknown_choice_is_named(argument, value):
    message = rf"{argument} must be one of .*, .*\. Received: '{value}'"
    with pytest.raises(tfs.distribute.LaunchError, match=message):
        tfs.distribute.LaunchOptions(__file__, **{argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("num_workers", 0),
        ("num_ps", -1),
        ("max_restarts", -1),
        ("base_port", -1),
        ("ready_timeout_secs", -1.0),
        ("grace_secs", float("inf")),
        ("chief", False),
        ("num_workers", "3"),
        ("num_workers", 2.5),
        ("num_workers", None),
        ("num_ps", True),
        ("base_port", "2222"),
        ("base_port", 22.5),
        ("grace_secs", "9"),
        ("args", "--epochs 3"),
        ("args", None),
        ("args", 3),
        ("script", None),
        ("allow", None),
    ],
)
def test_a_wrong_argument_is_named_as_python_knows_it(argument, value):
    with pytest.raises(tfs.distribute.LaunchError, match=f"^{argument}") as caught:
        tfs.distribute.LaunchOptions(**{"script": __file__, argument: value})
    reason = str(caught.value).partition(" Received: ")[0]
    assert "--" not in reason


def test_options_may_be_longer_than_an_argument_of_linux(script):
    """The limit is 128 KiB for one word, and 2 MiB and more for all."""
    path = script("import sys; sys.exit(len(''.join(sys.argv[1:])) // 5000)")
    options = tfs.distribute.LaunchOptions(
        path, args=["x" * 5000] * 50, run_script_on="workers", num_workers=1, num_ps=0
    )
    assert tfs.distribute.launch(options) == 50


def test_what_cannot_be_launched_is_raised(tmp_path):
    with pytest.raises(tfs.distribute.LaunchError, match=r"script '.*' does not exist"):
        tfs.distribute.LaunchOptions(tmp_path / "none.py")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = tfs.distribute.LaunchOptions(__file__, base_port=port - 1)
        with pytest.raises(
            tfs.distribute.PortUnavailableError,
            match=f"port {port} is in use; worker-0 needs it",
        ):
            tfs.distribute.launch(options)
