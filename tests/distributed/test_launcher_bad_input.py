"""What cannot be launched is refused at once, in one line, with status 2."""

import socket

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
        (["--workers", 0], "--workers must be at least 1. Received: 0"),
        (["--workers", -2], "--workers must be at least 1. Received: -2"),
        (["--workers", "two"], "argument --workers: invalid int value: 'two'"),
        (["--ps", -1], "--ps must not be negative. Received: -1"),
        (
            ["--max-restarts", -1],
            "--max-restarts must not be negative. Received: -1",
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
            "--no-chief needs --run-script-on workers or all: the coordinator is the "
            "chief",
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


def test_a_choice_that_is_none(script):
    result = commands.run("launch", "--run-script-on", "ps", script)
    assert len(result.stderr) == 1
    assert result.stderr[0].startswith(
        "tf-syncrep launch: error: argument --run-script-on: invalid choice: 'ps'"
    )
    assert result.process.returncode == 2


def test_an_option_that_is_none(script):
    result = commands.run("launch", "--wrokers=2", script)
    assert result.output == "tf-syncrep: error: unrecognized arguments: --wrokers=2"
    assert result.process.returncode == 2


def test_no_script():
    result = commands.run("launch")
    assert_refused(result, "the following arguments are required: script")


def test_a_script_that_does_not_exist():
    assert_refused(
        commands.run("launch", "no_such.py"), "the script 'no_such.py' does not exist"
    )


def test_a_folder_that_is_no_program(tmp_path):
    assert_refused(
        commands.run("launch", tmp_path), f"the folder '{tmp_path}' has no __main__.py"
    )


def test_a_module_that_does_not_exist():
    assert_refused(
        commands.run("launch", "-m", "no_such.module"),
        "there is no module 'no_such.module'",
    )


def test_a_port_in_use_is_named_with_the_task_that_needs_it(script):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = commands.run("launch", "--base-port", port - 1, script)
    assert_refused(result, f"port {port} is in use; worker-0 needs it")


def test_two_launches_cannot_share_a_port(tmp_path, script):
    path = tmp_path / "show.py"
    path.write_text("import os; print(os.environ['TF_CONFIG'], flush=True); input()")
    options = ("launch", "--run-script-on", "workers", "--ps", 0)
    with commands.Command(*options, path, stdin=-1) as first:
        port = int(first.wait_for_line(r'"worker": \["127.0.0.1:(\d+)"')[1])
        second = commands.run(*options, "--base-port", port, script)
        assert first.process.poll() is None
    assert_refused(second, f"port {port} is in use; worker-0 needs it")


def test_no_command_and_an_unknown_one():
    result = commands.run()
    assert (
        result.output
        == "tf-syncrep: error: the following arguments are required: COMMAND"
    )
    assert result.process.returncode == 2
    result = commands.run("lunch")
    assert len(result.stderr) == 1
    assert "invalid choice: 'lunch'" in result.output
    assert result.process.returncode == 2
