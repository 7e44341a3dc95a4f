"""Programs that tests run in processes of their own, and that report as JSON.

A program is a function of a test's file, or a file of its own.

Importing TensorFlow and Keras takes five seconds of CPU time, and tests start hundreds
of processes. So these come from the standard library's fork server, which imports once
and runs nothing: each program, with its servers and signals, has a process of its own.
"""

import atexit
import contextlib
import functools
import importlib.util
import inspect
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import output_lines

from tf_syncrep.python.distribute import allow, wire
from tf_syncrep.python.distribute.cluster import TaskConfig
from tf_syncrep.python.distribute.supervision import die_with_parent

if TYPE_CHECKING:
    import pytest

_PREFIX = "RESULT "
_DEADLINE_SECS = 400.0
_CONTEXT = multiprocessing.get_context("forkserver")
# Each process would find pytest as its main module, and import it.
_CONTEXT.set_forkserver_preload(
    ["pytest", "tensorflow.compat.v1", "tf_syncrep", "tf_syncrep.python.cli"]
)


# Held while a process is started, which also asks for the ends of all others, and while
# one is asked for its end. Its status comes through a pipe: of two threads that read it
# at once, the second would find the pipe's end, and take that for status 255.
_STATUS_LOCK = threading.Lock()


class Program:
    """A process that begins with TensorFlow imported, in a session of its own.

    It dies with this process. `clusters.Cluster` takes it for a `TaskProcess`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        on_line: Callable[[bytes, str], None],
    ):
        """Starts it.

        `environ`: its whole environment; at import the environment is this process's.
        """
        self.status: int | None = None  # as in a TaskProcess
        self._ended = threading.Event()
        self._on_line = on_line
        _start_fork_server()
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(2)]
        self._process = _CONTEXT.Process(
            target=_become,
            args=(list(command), dict(environ), [theirs for _, theirs in pipes]),
            daemon=True,
        )
        with _STATUS_LOCK:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        readers = []
        for (ours, theirs), stream in zip(pipes, ("stdout", "stderr"), strict=True):
            theirs.close()
            readers.append(
                threading.Thread(target=self._read, args=(ours, stream), daemon=True)
            )
            readers[-1].start()
        threading.Thread(target=self._wait, args=(readers,), daemon=True).start()

    @property
    def exit_status(self) -> int:
        """The status of a process that has ended, as a shell gives it: 128 + signal."""
        self._ended.wait()
        assert self.status is not None
        return self.status if self.status >= 0 else 128 - self.status

    def send_signal(self, signum: int) -> None:
        """Sends a signal; nothing happens if the process has ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def send_signal_to_group(self, signum: int) -> None:
        """Sends a signal to the process, which starts no others."""
        self.send_signal(signum)

    def wait(self, timeout_secs: float | None = None) -> bool:
        """Waits for the end and the last lines; False if the time was up before."""
        return self._ended.wait(timeout_secs)

    def _wait(self, readers: list[threading.Thread]) -> None:
        multiprocessing.connection.wait([self._process.sentinel])
        with _STATUS_LOCK:
            self._process.join()
            self.status = self._process.exitcode
        for reader in readers:
            reader.join()
        self._ended.set()

    def _read(self, pipe: multiprocessing.connection.Connection, stream: str) -> None:
        with open(os.dup(pipe.fileno()), "rb") as lines, pipe:
            for line in lines:
                self._on_line(line.rstrip(b"\r\n"), stream)


def run(path: pathlib.Path, *args: object, env: Mapping[str, str] = os.environ) -> Any:
    """Runs a Python file, with arguments as JSON, and returns what it reported.

    `environment` is added to its environment. If it fails, or takes too long and is
    killed, there is an AssertionError.
    """
    env = {**env, **environment()}
    return _reported(
        run_script(path, *map(json.dumps, args), env=env, secs=_DEADLINE_SECS)
    )


def _reported(finished: subprocess.CompletedProcess[str]) -> Any:
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-5000:]
    return result_in(finished.stdout)


def call(
    function: Callable[..., Any],
    *args: object,
    env: Mapping[str, str] = os.environ,
    secs: float = _DEADLINE_SECS,
) -> Any:
    """Calls a function of a test's file in a process of its own, like `run`.

    The process executes the file, which must not use TensorFlow outside of functions:
    it is for the function to set it up.
    """
    _, _, source, *arguments = call_command(function, *args)
    return _reported(run_source(source, *arguments, env=env, secs=secs))


def call_command(function: Callable[..., Any], *args: object) -> list[str]:
    """The command of a process that calls a function, and reports what it returns."""
    source = "import sys, programs; programs.call_here(*sys.argv[1:])"
    path, name = inspect.getfile(function), function.__name__
    return [sys.executable, "-c", source, path, name, *map(json.dumps, args)]


def call_here(path: str, name: str, *args: str) -> None:
    """What the process does."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report(getattr(module, name)(*map(json.loads, args)))


def run_script(
    path: pathlib.Path, *args: str, env: Mapping[str, str], secs: float
) -> subprocess.CompletedProcess[str]:
    """Runs a Python file, and returns its status and output.

    If it takes too long and is killed, there is an AssertionError.
    """
    return _run_to_its_end([sys.executable, str(path), *args], env, secs)


def run_source(
    source: str,
    *args: str,
    env: Mapping[str, str] = os.environ,
    secs: float = _DEADLINE_SECS,
) -> subprocess.CompletedProcess[str]:
    """Runs Python source like `run_script`; the tests' helpers can be imported."""
    command = [sys.executable, "-c", source, *args]
    return _run_to_its_end(command, {**env, **environment()}, secs)


def run_without_package(source: str, *args: str) -> list[str]:
    """Runs Python source where this package cannot be imported by chance.

    The process ignores PYTHONPATH. Returns the lines of its standard output.
    """
    command = [sys.executable, "-I", "-c", source, *args]
    finished = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECS,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout.splitlines()


def _run_to_its_end(
    command: Sequence[str], env: Mapping[str, str], secs: float
) -> subprocess.CompletedProcess[str]:
    lines = output_lines.Lines()
    program = Program(command, env, lines.add)
    if not program.wait(secs):
        program.send_signal(signal.SIGKILL)
        program.wait()
        raise AssertionError(
            f"{command[1]} has not ended after {secs} s:\n{lines.of()}"
        )
    stdout, stderr = ("\n".join([*lines.of(s), ""]) for s in ("stdout", "stderr"))
    return subprocess.CompletedProcess(command, program.exit_status, stdout, stderr)


def environment() -> dict[str, str]:
    """Returns the variables that the environment of a new program needs.

    They let it import what this process can; processes of the fork server can anyway.
    """
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def wanted(request: "pytest.FixtureRequest", name: str) -> list[Any]:
    """Returns the values of a parameter in those tests of a module that will run.

    The fixture's program then runs only these values.
    """
    values = [
        _parameters(item)[name]
        for item in request.session.items
        if item.path == request.path and name in _parameters(item)
    ]
    return list(dict.fromkeys(values))


def _parameters(item: "pytest.Item") -> Mapping[str, Any]:
    call = getattr(item, "callspec", None)  # tests without parameters have none
    return call.params if call else {}


def report(result: Any) -> None:
    """Called by a program, once: hands its result to the test."""
    print(_PREFIX + json.dumps(result), flush=True)


def error_of(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """What a program reports of a call: its error, or an empty string."""
    try:
        function(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def result_in(output: str) -> Any:
    """Returns the last report of a program with this output."""
    for line in reversed(output.splitlines()):
        if line.startswith(_PREFIX):
            return json.loads(line.removeprefix(_PREFIX))
    raise AssertionError(f"no result in\n{output[-5000:]}")


@functools.cache
def _start_fork_server() -> None:
    """Starts the fork server, undisturbed by its surroundings.

    It imports the installed package, not one in the current folder. It must not look
    for GPUs, which do not survive a fork. Temporary files of its processes are removed
    with their folder.
    """
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    environ = {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": folder.name}
    # Its processes are restricted, or not, by their own environments.
    nobody = TaskConfig({}, "chief", 0)
    environ["LD_PRELOAD"] = allow.environment(allow.LOCAL, nobody, os.environ)[
        "LD_PRELOAD"
    ]
    with mock.patch.dict(os.environ, environ):
        before = os.getcwd()
        os.chdir(folder.name)
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            os.chdir(before)


def _become(
    command: list[str],
    environ: dict[str, str],
    outputs: list[multiprocessing.connection.Connection],
) -> None:
    """Becomes the requested program, in a process that was just forked."""
    die_with_parent(os.getppid())
    # Private: the end of this pipe tells the fork server that its users have died. Held
    # open here, it would keep the server alive, and with it this process.
    os.close(multiprocessing.forkserver._forkserver._forkserver_alive_fd)
    status = 1
    atexit._clear()  # exit handlers belong to the fork server
    # Only for tests; benchmarks measure what users have.
    with contextlib.suppress(ImportError):
        importlib.import_module("garbage")
    try:
        os.setsid()
        for fd, output in enumerate(outputs, start=1):
            os.dup2(output.fileno(), fd)
            output.close()
        os.environ.clear()
        os.environ.update(environ)
        # The package was imported in another environment.
        wire.choose(os.environ)
        _, what, *arguments = command
        if what == "-c":
            source, *arguments = arguments
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            exec(source, {"__name__": "__main__"})
        else:
            sys.argv = [what, *arguments]
            sys.path.insert(0, str(pathlib.Path(what).parent))
            runpy.run_path(what, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.last_value = error  # as the interpreter does
        traceback.print_exc()
    finally:
        # The interpreter's own end is avoided, since it is the server's as well.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
