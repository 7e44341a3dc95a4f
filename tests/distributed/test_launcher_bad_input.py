"""Wrong options of a launch are refused at once, in one line, with status 2."""

import commands
import pytest


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("raise SystemExit('the script has run')")
    return path


def assert_refused(result, message):
    assert result.output == f"tf-syncrep launch: error: {message}"
    assert result.process.returncode == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--workers", 0],
            "--workers must be a whole number of at least 1. Received: 0",
        ),
        (["--workers", "two"], "argument --workers: invalid int value: 'two'"),
        (["--ps", -1], "--ps must be a whole number of at least 0. Received: -1"),
        (
            ["--max-restarts", -1],
            "--max-restarts must be a whole number of at least 0. Received: -1",
        ),
        (
            ["--inter-op-threads", 1],
            "argument --inter-op-threads: must be a whole number of at least 2. "
            "Received: 1",
        ),
        (
            ["--intra-op-threads", 0],
            "argument --intra-op-threads: must be a whole number of at least 1. "
            "Received: 0",
        ),
        (
            ["--grace", -1],
            "--grace must be a number of seconds that is not negative. Received: -1.0",
        ),
        (
            ["--ready-timeout", "nan"],
            "--ready-timeout must be a number of seconds that is not negative. "
            "Received: nan",
        ),
        (
            ["--no-chief"],
            "--no-chief is for scripts that run on workers or on all: the coordinator "
            "is the chief",
        ),
        (
            ["--workers", 2, "--base-port", 65533],
            "--base-port must leave room for 4 ports up to 65535. Received: 65533",
        ),
        (
            ["--base-port", -1],
            "--base-port must leave room for 3 ports up to 65535. Received: -1",
        ),
    ],
)
def test_options(script, options, message):
    assert_refused(commands.run("launch", *options, script), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: script"),
        (["no_such.py"], "the script 'no_such.py' does not exist"),
        (["."], "the folder '.' has no __main__.py"),
        (["-m", "no_such.module"], "there is no module 'no_such.module'"),
    ],
)
def test_no_such_script(tmp_path, words, message):
    assert_refused(commands.run("launch", *words, cwd=tmp_path), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "tf-syncrep: error: the following arguments are required: COMMAND"),
        (["lunch"], "tf-syncrep: error: argument COMMAND: invalid choice: 'lunch'"),
        (
            ["launch", "--wrokers=2", __file__],
            "tf-syncrep: error: unrecognized arguments: --wrokers=2",
        ),
        (
            ["launch", "--run-script-on", "ps", __file__],
            "tf-syncrep launch: error: argument --run-script-on: invalid choice: 'ps'",
        ),
    ],
)
def test_no_such_word(words, message):
    result = commands.run(*words)
    # Python's versions list the valid choices in different ways.
    (line,) = result.output.splitlines()
    assert line.partition(" (choose from")[0] == message
    assert result.process.returncode == 2


def test_a_port_that_another_launch_uses_is_named_with_the_task_that_needs_it(
    tmp_path, script
):
    path = tmp_path / "show.py"
    path.write_text("import os; print(os.environ['TF_CONFIG'], flush=True); input()")
    options = ("launch", "--run-script-on", "workers", "--ps", 0)
    with commands.Command(*options, path, stdin=-1) as first:
        port = int(first.wait_for_line(r'"worker": \["127.0.0.1:(\d+)"')[1])
        second = commands.run(*options, "--base-port", port, script)
        assert first.process.poll() is None
    assert_refused(second, f"port {port} is in use; worker-0 needs it")
