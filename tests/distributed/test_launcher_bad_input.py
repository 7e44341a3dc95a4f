"""Wrong options of `launch` and `task` are refused in one line, with status 2."""

import commands
import pytest

RAISES = "raise SystemExit('the script has run')"
SECONDS = "be a number of seconds from 0 to 9223372036"


def assert_refused(result, message, command="launch"):
    assert result.output == f"tf-syncrep {command}: error: {message}"
    assert result.process.returncode == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "two"], "argument --workers: invalid int value: 'two'"),
        (
            ["--no-chief"],
            "--no-chief is for scripts that run on workers or on all: the coordinator "
            "is the chief",
        ),
        (
            ["--workers", 2, "--base-port", 65533],
            "--base-port must leave room for 4 ports up to 65535. Received: 65533",
        ),
    ],
)
def test_options(script, options, message):
    assert_refused(commands.run("launch", *options, script(RAISES)), message)


@pytest.mark.parametrize(
    ("command", "option", "value", "rule"),
    [
        ("launch", "--workers", 0, "be a whole number of at least 1"),
        ("launch", "--ps", -1, "be a whole number of at least 0"),
        ("launch", "--max-restarts", -1, "be a whole number of at least 0"),
        ("launch", "--inter-op-threads", 1, "be a whole number of at least 2"),
        ("launch", "--intra-op-threads", 0, "be a whole number of at least 1"),
        ("launch", "--grace", -1.0, SECONDS),
        # Python cannot wait that long.
        ("launch", "--grace", 10000000000.0, SECONDS),
        ("launch", "--ready-timeout", "nan", SECONDS),
        ("launch", "--base-port", -1, "leave room for 3 ports up to 65535"),
        ("task", "--ready-timeout", -1.0, SECONDS),
    ],
)
def test_numbers(script, command, option, value, rule):
    result = commands.run(command, option, value, script(RAISES))
    # The parser itself checks some.
    named = f"argument {option}:" if option.endswith("threads") else option
    assert_refused(result, f"{named} must {rule}. Received: {value}", command)


@pytest.mark.parametrize("command", ["launch", "task"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: script"),
        (["no_such.py"], "the script 'no_such.py' does not exist"),
        (["."], "the folder '.' has no __main__.py"),
        (["-m", "no_such.module"], "there is no module 'no_such.module'"),
    ],
)
def test_no_such_script(tmp_path, command, words, message):
    result = commands.run(command, *words, cwd=tmp_path, env={"TF_CONFIG": None})
    assert_refused(result, message, command)


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
        second = commands.run(*options, "--base-port", port, script(RAISES))
        assert first.process.poll() is None
    assert_refused(second, f"port {port} is in use; worker-0 needs it")
