"""However a launch ends, its signals arrive and no process is left behind."""

import os
import re
import select
import signal
import subprocess

import commands
import programs
import pytest
import waiting
from process_threads import all_in_state, only_child

from tf_syncrep.python.distribute import supervision
from tf_syncrep.python.distribute.task_process import TaskProcess

pytestmark = pytest.mark.one_version

WORKERS_ONLY = ("launch", "--run-script-on", "workers", "--ps", 0)

# Starts a grandchild in the same session and one that has left it, ignores the given
# signals, and reports a Ctrl-C.
SCRIPT = """
import os, signal, subprocess, sys, time
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
try:
    print("ready", flush=True)
    while True:
        time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(9)
"""


@pytest.fixture
def sleeper(script):
    """The path of the script."""
    return script(SCRIPT)


def test_ctrl_c_on_a_terminal_arrives_once_and_leaves_the_terminal(sleeper):
    status, shown = commands.run_on_terminal(
        *WORKERS_ONLY, sleeper, answers={b"ready": b"\x03"}
    )
    assert status == 9
    assert shown.count(b"interrupted") == 1
    assert shown.count(b"SIGINT received") == 1


PASSED_ON = "passed on to worker-0; a second one kills at once"
KILLED = r"worker-0 \(pid \d+\) did not end within 0\.2 s; killing it"


@pytest.mark.parametrize(
    ("name", "ignored", "options", "status", "said"),
    [
        ("SIGINT", [], [], 9, f"SIGINT received, {PASSED_ON}"),
        ("SIGTERM", [], [], 128 + signal.SIGTERM, "SIGTERM received"),
        ("SIGHUP", [], [], 128 + signal.SIGHUP, "SIGHUP received"),
        ("SIGTERM", ["SIGTERM"], ["--grace", 0.2], 128 + signal.SIGKILL, KILLED),
    ],
)
def test_a_signal_reaches_the_script_whose_status_is_returned(
    sleeper, name, ignored, options, status, said
):
    signum = getattr(signal, name)
    if signal.getsignal(signum) == signal.SIG_IGN:
        pytest.skip(f"{name} is ignored here, as under nohup, and so by the launcher")
    with commands.Command(*WORKERS_ONLY, *options, sleeper, *ignored) as command:
        command.wait_for_line("ready")
        command.process.send_signal(signum)
        assert command.wait_for_all() == status
    assert re.search(rf"launch   \| {said}", command.output)
    assert ("worker-0 | interrupted" in command.output) == (name == "SIGINT")


def test_a_second_ctrl_c_kills_at_once(sleeper):
    with commands.Command(*WORKERS_ONLY, "--grace", 1e6, sleeper, "SIGINT") as command:
        command.wait_for_line("ready")
        command.process.send_signal(signal.SIGINT)
        command.wait_for_line("SIGINT received")
        command.process.send_signal(signal.SIGINT)
        assert command.wait_for_all() == 128 + signal.SIGINT


def test_a_signal_that_timeout_sends_to_a_process_and_its_group_is_one(script):
    path = script(
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "print('ready', flush=True)\n"
        "input()\n"
        "raise SystemExit(5)\n"
    )
    with commands.Command(*WORKERS_ONLY, path, stdin=subprocess.PIPE) as command:
        command.wait_for_line("ready")
        body = only_child(command.process.pid)
        os.kill(body, signal.SIGTERM)
        command.wait_for_line("SIGTERM received")
        os.kill(body, signal.SIGTERM)
        command.write("\n")
        assert command.wait_for_all() == 5


def test_grandchildren_are_killed_when_the_script_ends(script):
    path = script(SCRIPT.replace('print("ready", flush=True)', "sys.exit(5)"))
    with commands.Command(*WORKERS_ONLY, path) as command:
        assert command.wait_for_all() == 5


def signal_outlived_task():
    """The status of a child of a task that has ended, and signals to groups."""
    supervision.become_subreaper()
    lines, sent = [], []
    task = TaskProcess(
        "worker-0",
        ["sh", "-c", "sleep 1000 & echo $!"],
        os.environ,
        on_line=lambda line, _: lines.append(line),
        on_exit=lambda _: None,
    )
    task.wait()
    os.killpg = lambda *args: sent.append(args)
    task.send_signal_to_group(signal.SIGTERM)
    child = int(lines[0])
    if sent:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sent


def test_signals_reach_what_is_left_of_a_task_and_no_group_that_has_its_number():
    # The kernel may give the number of a task that has ended to another group.
    assert programs.call(signal_outlived_task) == [-signal.SIGTERM, []]


def test_program_that_cannot_be_started_keeps_no_descriptor():
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        TaskProcess(
            "worker-0",
            ["no such program"],
            os.environ,
            on_line=lambda line, stream: None,
            on_exit=lambda process: None,
            terminal=os.openpty(),
        )
    assert os.listdir("/proc/self/fd") == before


def test_what_a_shell_has_started_before_it_becomes_the_launcher_is_left(script):
    shell = '(sleep 1000; true) >/dev/null 2>&1 & echo bystander $!; exec "$@"'
    program = ["sh", "-c", shell, "sh", commands.CONSOLE_SCRIPT]
    path = script(SCRIPT.replace('print("ready", flush=True)', "sys.exit(5)"))
    with commands.Command(*WORKERS_ONLY, path, program=program) as command:
        bystander = int(command.wait_for_line(r"bystander (\d+)")[1])
        # It has the only process below it: the script's children are killed.
        assert command.wait() == 5
        assert set(command.pids()) == {bystander, only_child(bystander)}


def test_orphans_that_have_ended_are_reaped_while_the_script_runs(script):
    path = script(
        "import os\n"
        "for _ in range(3): os.system('sh -c \"echo orphan \\\\$\\\\$\" &')\n"
        "input()\n"
        "raise SystemExit(3)\n"
    )
    with commands.Command(*WORKERS_ONLY, path, stdin=subprocess.PIPE) as command:
        command.wait_for_line("orphan", occurrence=3)
        orphans = re.findall(r"orphan (\d+)", command.output)
        waiting.until(lambda: not any(os.path.exists(f"/proc/{x}") for x in orphans))
        # The status of the script itself is left to who waits for it.
        command.write("\n")
        assert command.wait_for_all() == 3


@pytest.mark.parametrize("victim", ["front", "body"])
def test_a_killed_launcher_leaves_nothing(sleeper, victim):
    with commands.Command(*WORKERS_ONLY, sleeper, "SIGTERM", "SIGINT") as command:
        command.wait_for_line("ready")
        front = command.process.pid
        os.kill(front if victim == "front" else only_child(front), signal.SIGKILL)
        command.wait_until_no_process_is_left()


def test_the_script_dies_even_if_the_whole_launcher_is_killed_at_once(sleeper):
    with commands.Command(*WORKERS_ONLY, sleeper, "SIGTERM", "SIGINT") as command:
        command.wait_for_line("ready")
        front = command.process.pid
        body = only_child(front)
        task = os.pidfd_open(only_child(body))
        os.kill(body, signal.SIGSTOP)  # it cannot clean up when it sees the front die
        os.kill(front, signal.SIGKILL)
        os.kill(body, signal.SIGKILL)
        ended, _, _ = select.select([task], [], [], commands.DEADLINE_SECS)
        os.close(task)
        assert ended


def test_a_reader_that_goes_away_ends_the_run(script):
    path = script("while True: print('line')")
    process = subprocess.Popen(
        [commands.CONSOLE_SCRIPT, *map(str, WORKERS_ONLY), path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().endswith("worker-0 | line\n")
    process.stdout.close()
    assert process.wait(commands.DEADLINE_SECS) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("script_fails", [False, True])
def test_a_dead_ps_is_named_even_if_the_script_fails_of_it_first(script, script_fails):
    path = script(
        "import os, sys, time\n"
        "print('pid', os.getpid(), flush=True)\n"
        "if '\"type\": \"ps\"' in os.environ['TF_CONFIG']:\n"
        "    time.sleep(1000)\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    time.sleep(0.01)\n"
        "sys.exit(4)\n"
    )
    done = path.with_name("done")
    with commands.Command("launch", "--run-script-on", "all", path, done) as command:
        ps = int(command.wait_for_line(r"ps-0     \| pid (\d+)")[1])
        worker = int(command.wait_for_line(r"worker-0 \| pid (\d+)")[1])
        body = only_child(command.process.pid)
        if script_fails:  # both are dead when the launcher notices the first
            os.kill(body, signal.SIGSTOP)
            wait_for_state(body, "T")
            done.touch()
            wait_for_state(worker, "Z")
        os.kill(ps, signal.SIGKILL)
        if script_fails:
            wait_for_state(ps, "Z")
            os.kill(body, signal.SIGCONT)
        assert command.wait_for_all() == 1
    assert re.search(
        r"launch   \| ps-0 \(pid \d+\) was killed by SIGKILL; its variables are lost, "
        "ending the run",
        command.output,
    )


def wait_for_state(pid, state):
    """Waits until a process is stopped (T) or a zombie (Z).

    It is stopped when all its threads are: one that waits for a child would reap it.
    """
    waiting.until(lambda: all_in_state(pid, state))
