"""`tf-syncrep launch`: the output of tasks is passed on to a pipe or a terminal."""

import contextlib
import os
import re
import signal
import subprocess

import commands
import pytest
import waiting
from process_threads import only_child

from tf_syncrep.python.distribute import local_cluster

ONE_SCRIPT = ("launch", "--run-script-on", "workers", "--ps", 0)
FREED = (
    "kernel_and_device.cc:101] Ignoring error status when releasing multi-device "
    "function handle UNIMPLEMENTED: Releasing a multi-device component handle on a "
    "remote device is not yet implemented."
)
UNCLEARED = (
    "E0000 00:00:1.2  3 function_handle_cache.cc:30] Failed to clear function handle "
    "cache: UNIMPLEMENTED: Releasing a multi-device component handle on a remote "
    "device is not yet implemented."
)
UNREMOVED = [
    "E0000 00:00:1.2  3 context.cc:99] Failed to remove function remotely due to an id",
    "Additional GRPC error information from remote target /job:ps/replica:0/task:0:",
    ':UNKNOWN:Error received from peer  {grpc_message:"an id"}',
    "This could happen if the remote target has been disconnected from the client.",
]
# The end of an error's message in a traceback.
REPEATED = [
    "Additional GRPC error information from remote target /job:worker/replica:0/task:0 "
    "while calling /tensorflow.eager.EagerService/Enqueue:",
    ':UNKNOWN:Error received from peer  {grpc_message:"my own error"} [Op:__inference]',
]
LOGGED = f"2026-01-02 03:04:05.6: I tensorflow/core/common_runtime/eager/{FREED}"

DRAWS_A_BAR = r"""
print(sys.stdout.isatty(), sys.stderr.isatty(), end="")
if sys.stdout.isatty():
    print(tuple(os.get_terminal_size()), end="")
for step in range(3):
    print(f"\r\x1b[1m{step}/2\x1b[0m", end="", flush=True)
sys.stderr.write("a warning\n")
sys.stderr.flush()
input()
print("\rdone")
"""


@pytest.fixture
def script(script):
    """The function for scripts, which begin with an import."""
    return lambda source: script(f"import os, sys\n{source}\n")


# Programs, by name, with the lines that they are shown with.
SHOWN = {
    "streams": ("print('out'); print('err', file=sys.stderr)", ["out"], ["err"]),
    "empty": (r"print('a\n\nb')", ["a", "", "b"], []),
    "not_utf8": (r"os.write(1, b'\xff bytes\n')", ["\ufffd bytes"], []),
    # Only the last state of a progress bar is shown.
    "progress": (r"os.write(1, b'1/2\r2/2\nno end')", ["2/2", "no end"], []),
    # A pipe gets no colours.
    "colours": (r"print('\x1b[1m\x1b[38;5;4mhello\x1b[0m\x1b[K')", ["hello"], []),
    # Lines of a coordinator about functions that it cannot free are omitted.
    "logs": (
        f"print({LOGGED!r}, 'I0000 00:00:1.2  3 {FREED}', sep='\\n', "
        f"file=sys.stderr); print({FREED!r}, {LOGGED!r} + ' And more', "
        "sep='\\n', file=sys.stderr)",
        [],
        [FREED, f"{LOGGED} And more"],
    ),
    # So are lines below the error that ends it.
    "last_words": (
        f"print('KeyError: 1', *{UNREMOVED!r}, 'KeyError: 2', {UNCLEARED!r}, "
        f"{UNREMOVED[0]!r}, 'W0000 a', *{UNREMOVED[:2]!r}, "
        "'Traceback (most recent call last):', 'KeyError: 3', sep='\\n', "
        "file=sys.stderr)",
        [],
        [
            "KeyError: 1",
            "KeyError: 2",
            "W0000 a",
            "Traceback (most recent call last):",
            "KeyError: 3",
        ],
    ),
    # The repeated error itself is omitted as well.
    "repeated": (
        f"print('E: my own error', *{REPEATED!r}, sep='\\n', file=sys.stderr)",
        [],
        ["E: my own error"],
    ),
}


@pytest.mark.parametrize(
    ("source", "stdout", "stderr"), list(SHOWN.values()), ids=list(SHOWN)
)
def test_lines_have_the_time_and_the_name_of_their_task(script, source, stdout, stderr):
    env = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    result = commands.run(*ONE_SCRIPT, script(source), env=env)
    assert result.process.returncode == 0
    for lines, expected in ((result.stdout, stdout), (result.stderr, stderr)):
        own = [line for line in lines if " launch   | " not in line]
        assert all(re.match(r"\d\d:\d\d:\d\d worker-0 \| ", line) for line in own)
        assert [line.partition(" | ")[2] for line in own] == expected


@pytest.mark.parametrize(
    ("given", "of_script", "of_server"),
    [({}, "1", "2"), ({"TF_CPP_MIN_LOG_LEVEL": "0"}, "0", "0")],
)
def test_tensorflows_lines_of_information_are_for_those_who_ask(
    given, of_script, of_server
):
    (task,) = local_cluster.tasks_of({"worker": ["localhost:1"]})
    name = "TF_CPP_MIN_LOG_LEVEL"
    assert local_cluster.environment(task, given)[name] == of_script
    assert local_cluster.environment(task, given, serves=True)[name] == of_server


def test_what_the_locale_cannot_show_is_replaced(script):
    path = script("os.write(1, '\u00e9 and more\\n'.encode())")
    result = commands.run(*ONE_SCRIPT, path, env={"PYTHONIOENCODING": "ascii"})
    assert result.stdout[0].endswith("worker-0 | ? and more")
    assert result.process.returncode == 0


def test_no_prefix_passes_lines_on_as_they_are(script):
    result = commands.run(*ONE_SCRIPT, "--no-prefix", script("print('plain')"))
    assert result.stdout == ["plain"]


def test_shows_a_line_when_it_is_written_and_not_at_the_end(script):
    path = script("print('first'); input()")
    with commands.Command(*ONE_SCRIPT, path, stdin=subprocess.PIPE) as command:
        command.wait_for_line(r"worker-0 \| first$")
        command.write("go\n")
        assert command.wait() == 0


@contextlib.contextmanager
def slow_reader(script):
    """A launch whose script has ended, but whose output nobody reads yet.

    One pipe cannot hold the output, but the launcher's and the script's do.
    """
    # It waits for a cue: its lines would keep the launcher from saying its pid.
    lines = "for i in range(1200): print(i, 'x' * 80)\nprint('the last')"
    path = script(f"input()\n{lines}")
    with subprocess.Popen(
        [commands.CONSOLE_SCRIPT, *map(str, ONE_SCRIPT), "--no-prefix", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said = process.stderr.readline()
            task = re.search(r"worker-0 runs the script \(pid (\d+)\)", said)[1]
            process.stdin.write("go\n")
            process.stdin.flush()
            waiting.until(lambda: not os.path.exists(f"/proc/{task}"))
            yield process
        finally:
            process.kill()


def test_a_reader_that_is_slow_at_the_end_gets_all_lines(script):
    with slow_reader(script) as process:
        # The launcher waits longer than it would for lines of a script's children.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        lines = process.stdout.read().splitlines()
        assert process.wait(commands.DEADLINE_SECS) == 0
    assert lines == [*(f"{i} {'x' * 80}" for i in range(1200)), "the last"]


def test_a_second_signal_ends_a_launcher_whose_reader_is_slow(script):
    with slow_reader(script) as process:
        body = only_child(process.pid)

        def ends():
            # The front process, which passes signals on, may itself have ended else.
            with contextlib.suppress(ProcessLookupError):
                os.kill(body, signal.SIGTERM)
            return process.poll() is not None

        waiting.until(ends)
        assert process.returncode == 128 + signal.SIGTERM


def test_a_child_that_goes_on_writing_does_not_keep_the_run(script):
    path = script("import subprocess; subprocess.Popen(['yes'])")
    result = commands.run(*ONE_SCRIPT, "--no-prefix", path)
    assert result.process.returncode == 0
    assert set(result.stdout) <= {"y"}


def test_a_progress_bar_redraws_on_a_terminal_beside_lines_of_other_kinds(script):
    path = script(DRAWS_A_BAR)
    cue = rb"(?s)(?=.*2/2).*a warning"
    status, shown = commands.run_on_terminal(*ONE_SCRIPT, path, answers={cue: b"\n"})
    assert status == 0
    bar = b"".join(b"\r\x1b[1m%d/2\x1b[0m" % step for step in range(3))
    # Other messages are on lines of their own, even if the script has begun a line.
    said = rb"\d\d:\d\d:\d\d (worker-0|launch  ) \| [^\r]*\r\n"
    assert len(re.findall(rb"(?:\A|\r\n)(?=" + said + rb")", shown)) == 2
    rest = re.sub(rb"(?:\r\n)?" + said, b"", shown)
    assert b"True False(77, 33)" + bar in rest
    # The last line may be the launcher's or the script's, depending on time.
    assert rest.rstrip().endswith(b"\rdone")


def test_a_script_has_no_terminal_where_the_launcher_has_none(script):
    path = script(DRAWS_A_BAR)
    with commands.Command(*ONE_SCRIPT, path, stdin=-1) as command:
        command.wait_for_line("a warning")
        command.write("\n")
        assert command.wait() == 0
    # A line that redraws itself shows its last state.
    assert command.stdout[-1].endswith("worker-0 | done")


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_prefixes_on_a_terminal_unless_told_not_to(script, no_color):
    command = (*ONE_SCRIPT, "--workers", 2, script("print('hello')"))
    status, shown = commands.run_on_terminal(*command, no_color=no_color)
    assert status == 0
    assert shown.count(b"hello\r\n") == 2
    assert (b"\x1b[36m" in shown) != no_color
