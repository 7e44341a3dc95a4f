"""The command `tf-syncrep`: launch, task, serve, serve-model, doctor and report.

Slow imports happen only after the arguments have been checked.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tf_syncrep.python.distribute import (
    allow,
    launch_options,
    ports,
    script,
    threads,
    wire,
)
from tf_syncrep.python.distribute.errors import UsageError
from tf_syncrep.python.distribute.launch_options import LaunchError, LaunchOptions
from tf_syncrep.python.version import VERSION

_BAD_USAGE = 2
_LAST_PORT = 2**16 - 1

_LAUNCH_EPILOG = """\
examples:
  tf-syncrep launch --workers 4 --ps 2 train.py --epochs 3
      train.py is the coordinator of a tf.distribute.ParameterServerStrategy.
  tf-syncrep launch --workers 4 --ps 2 --run-script-on workers train.py
      between-graph replication (tf.compat.v1): worker-0 is the chief.
  tf-syncrep launch --workers 2 --ps 0 --run-script-on workers train.py
      tf.distribute.MultiWorkerMirroredStrategy.
  tf-syncrep launch --workers 2 --ps 1 --chief --run-script-on all train.py
      Estimator's train_and_evaluate, which serves in the ps tasks itself.

Every task gets its place by TF_CONFIG. The exit status is the script's.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and which knows its options by `dest`."""

    def __init__(self, **settings: Any):
        self.options: dict[str, Sequence[str]] = {}
        super().__init__(**settings)

    def add_argument(self, *args: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*args, **settings)
        self.options[action.dest] = action.option_strings
        return action

    def error(self, message: str) -> NoReturn:
        self.exit(_BAD_USAGE, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    `argv`: its arguments; those of the process by default.
    """
    _open_standard_streams()
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(argv, argparse.Namespace(words=tuple(argv)))
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except UsageError as error:
        print(f"{arguments.prog}: error: {error}", file=sys.stderr)
        return _BAD_USAGE


def _open_standard_streams() -> None:
    """Opens /dev/null in place of standard streams that are closed, as by `>&-`.

    Otherwise the next file or connection that is opened would take their numbers, here
    and in the processes that this one starts.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tf-syncrep",
        description="Training with parameter servers in TensorFlow 2.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tf_syncrep {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    launch = commands.add_parser(
        "launch",
        help="run a training script on a local cluster of processes",
        description="Runs a training script on a local cluster of processes.",
        epilog=_LAUNCH_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_launch_arguments(launch)
    launch.set_defaults(
        run=_launch,
        options=launch.options,
        **{
            field.name: field.default
            for field in dataclasses.fields(LaunchOptions)
            if field.default is not dataclasses.MISSING
        },
    )
    task = commands.add_parser(
        "task",
        help="be the task of TF_CONFIG: serve it, or run the script",
        description="Is the task of TF_CONFIG that a scheduler started: serves a "
        "worker or ps; elsewhere waits until these answer, and runs the script.",
        allow_abbrev=False,
    )
    _add_run_script_on(task)
    _add_allow(task)
    _add_tls(task)
    _add_rpc_layer(task)
    _add_threads(task)
    task.add_argument(
        "--ready-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait for the servers before the script (default: 600)",
    )
    _add_script(task)
    task.set_defaults(run=_task)
    serve = commands.add_parser(
        "serve",
        help="serve one ps or worker task of the cluster in TF_CONFIG",
        description="Serves one ps or worker task of the cluster in TF_CONFIG, with "
        "the op library loaded, until a signal ends it.",
    )
    _add_allow(serve)
    _add_tls(serve)
    _add_rpc_layer(serve)
    _add_threads(serve)
    serve.set_defaults(run=_serve)
    serve_model = commands.add_parser(
        "serve-model",
        help="answer requests by what a training publishes, by HTTP",
        description="Answers requests by HTTP, in TensorFlow Serving's REST form, by "
        "the newest version that a tfs.keras.Publisher has published in a folder. This "
        "is for trials and small loads; TensorFlow Serving is for large ones.",
        allow_abbrev=False,
    )
    serve_model.add_argument(
        "folder", metavar="FOLDER", help="the publisher's; it need not exist yet"
    )
    serve_model.add_argument(
        "--name",
        metavar="NAME",
        help="the model's in /v1/models/NAME (default: the folder's)",
    )
    serve_model.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen; 0.0.0.0 is everywhere. Whoever can connect is answered "
        "(default: %(default)s)",
    )
    serve_model.add_argument(
        "--port",
        type=_port,
        default=8501,
        metavar="PORT",
        help="0 for a free one (default: %(default)s)",
    )
    serve_model.set_defaults(run=_serve_model)
    doctor = commands.add_parser(
        "doctor",
        help="say what is installed, what is wrong, and how to fix it",
        description="Says what is installed, what is wrong, and how to fix it.",
    )
    doctor.set_defaults(run=_doctor)
    report = commands.add_parser(
        "report",
        help="draw what a synchronous training did, from its TensorBoard files",
        description="Draws the latest synchronous training below a folder of "
        "TensorBoard's event files: loss, contributions of each worker, dropped "
        "gradients, waits; and says the same in a few lines.",
        allow_abbrev=False,
    )
    report.add_argument("logdir", metavar="LOGDIR", help="the folder")
    how = report.add_mutually_exclusive_group()
    how.add_argument(
        "--live",
        action="store_true",
        help="show the table, and curves, of a training under way in the terminal, "
        "until Ctrl-C",
    )
    how.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the picture (default: sync_report.png in LOGDIR)",
    )
    report.set_defaults(run=_report)
    for command in (launch, task, serve, serve_model, doctor, report):
        command.set_defaults(prog=command.prog)
    return parser


def _add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each field of LaunchOptions, which also has the defaults."""
    parser.add_argument(
        "--workers",
        dest="num_workers",
        type=int,
        metavar="N",
        help="workers (default: %(default)s)",
    )
    parser.add_argument(
        "--ps",
        dest="num_ps",
        type=int,
        metavar="M",
        help="parameter servers (default: %(default)s)",
    )
    _add_run_script_on(parser)
    parser.add_argument(
        "--chief",
        action=argparse.BooleanOptionalAction,
        help="a chief task besides the workers (default: only for a coordinator)",
    )
    parser.add_argument(
        "--evaluator",
        action="store_true",
        help="run the script in an evaluator task, too, outside of the cluster: it "
        "follows the checkpoints (tfs.keras.SidecarEvaluator)",
    )
    parser.add_argument(
        "--on-worker-failure",
        choices=launch_options.WORKER_FAILURE_POLICIES,
        help="what a dead worker means for the run (default: restart if workers are "
        "servers, stop if they run the script)",
    )
    parser.add_argument(
        "--on-ps-failure",
        choices=launch_options.PS_FAILURE_POLICIES,
        help="what a dead parameter server means for the run: restart starts all tasks "
        "again, for a script that goes on from its checkpoints (default: %(default)s)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="K",
        help="restarts of each worker under --on-worker-failure restart, of the run "
        "under --on-ps-failure restart, and of the evaluator (default: %(default)s)",
    )
    parser.add_argument(
        "--base-port",
        type=int,
        metavar="PORT",
        help="the first of consecutive ports, for chief, workers, ps in this order "
        "(default: free ones are chosen)",
    )
    parser.add_argument(
        "--ready-timeout",
        dest="ready_timeout_secs",
        type=float,
        metavar="SECONDS",
        help="how long the servers have to answer (default: %(default)g)",
    )
    parser.add_argument(
        "--grace",
        dest="grace_secs",
        type=float,
        metavar="SECONDS",
        help="how long the script has to end after Ctrl-C or SIGTERM, and in other "
        "tasks after the chief's end (default: %(default)g)",
    )
    parser.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        help="begin each line with the time and the task (default: yes)",
    )
    _add_allow(parser)
    _add_rpc_layer(parser)
    _add_threads(parser)
    parser.add_argument(
        "--gpus-per-worker",
        type=int,
        metavar="N",
        help="how many of this machine's GPUs each worker has for itself; the other "
        "tasks see none (default: one, which workers share if there are fewer)",
    )
    _add_script(parser)


def _add_run_script_on(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-script-on",
        choices=tuple(script.SCRIPT_JOBS),
        default="coordinator",
        help="the tasks that run the script: only the chief, which coordinates (the "
        "default); the workers, and the chief if there is one; or all, ps included. "
        "The others run `tf-syncrep serve`",
    )


def _add_allow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow",
        default=allow.CLUSTER,
        metavar="WHOM",
        help="who may connect, besides this machine: local, nobody; cluster, the hosts "
        "in TF_CONFIG, whose names are followed; networks such as 10.0.0.0/8; several "
        "of these, separated by commas; or all (default: %(default)s)",
    )


def _add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls",
        metavar="CERT,KEY,CA",
        help="talk to the other tasks through TLS, by stunnel: the task's certificate, "
        "its key, and the authority that signed the others' (files in PEM format)",
    )
    parser.add_argument(
        "--tls-base-port",
        type=int,
        default=ports.TLS_BASE_PORT,
        metavar="PORT",
        help="the first of as many local ports as there are tasks, the same in all of "
        "them (default: %(default)s)",
    )


def _add_rpc_layer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rpc-layer",
        choices=wire.RPC_LAYERS,
        help="how a task talks to the others: by grpc+tfs, a protocol of tf_syncrep's, "
        "if they have it, too, and else by gRPC; or by gRPC alone (default: "
        f"{wire.VARIABLE}, or grpc+tfs)",
    )


def _add_threads(parser: argparse.ArgumentParser) -> None:
    for kind, least, what, also in (
        (
            "inter",
            threads.MIN_INTER_OP_THREADS,
            "how many ops a task may run at the same time, at least 2: with one, it "
            "would wait for another task and not answer it",
            "; 4 for a server on a machine with fewer than four cores",
        ),
        ("intra", 1, "how many threads an op of a task may share its work among", ""),
    ):
        parser.add_argument(
            f"--{kind}-op-threads",
            type=functools.partial(_whole, least),
            metavar="N",
            help=f"{what} (default: TF_NUM_{kind.upper()}OP_THREADS, or TensorFlow's "
            f"choice{also})",
        )


def _whole(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {least}. Received: {text}"
        )
    return int(text)


def _port(text: str) -> int:
    if (port := _whole(0, text)) > _LAST_PORT:
        raise argparse.ArgumentTypeError(
            f"must be at most {_LAST_PORT}. Received: {text}"
        )
    return port


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--module",
        action="store_true",
        help="the script is a module's name, as in `python -m`",
    )
    parser.add_argument("script", help="a Python file, or another executable one")
    args = parser.add_argument(
        "args", nargs=argparse.REMAINDER, help="the script's own arguments"
    )
    args.required = False  # argparse would name it if the script is missing.


def _launch(arguments: argparse.Namespace) -> int:
    from tf_syncrep.python.distribute import launcher

    names = [field.name for field in dataclasses.fields(LaunchOptions)]
    try:
        options = LaunchOptions(**{name: getattr(arguments, name) for name in names})
        if misplaced := _misplaced_options(arguments):
            args = shlex.join(arguments.args)
            raise LaunchError(
                ", ".join(misplaced),
                f"must stand before the script. Received: {arguments.script} {args}. "
                f"If the script is to get them: {arguments.script} -- {args}",
            )
    except LaunchError as error:
        option = error.argument
        if option in arguments.options:
            option = arguments.options[option][0]
        elif option == "chief=False":
            option = "--no-chief"
        raise UsageError(f"{option} {error.reason}".lstrip()) from None
    return launcher.launch_here(options)


def _misplaced_options(arguments: argparse.Namespace) -> list[str]:
    """Returns options of launch among the script's arguments, but not after a `--`."""
    # argparse removes a `--` that comes right after the script.
    if arguments.words[-len(arguments.args) - 1] == "--":
        return []
    # Those that have a short name are Python's (-m) and everybody's (-h).
    known = {
        name
        for names in arguments.options.values()
        if names and names[0].startswith("--")
        for name in names
    }
    words = itertools.takewhile(lambda word: word != "--", arguments.args)
    options = dict.fromkeys(word.partition("=")[0] for word in words)
    return [option for option in options if option in known]


def _task(arguments: argparse.Namespace) -> int:
    from tf_syncrep.python.distribute import task

    _set_environment(arguments)
    task.run(
        arguments.script,
        arguments.args,
        module=arguments.module,
        run_script_on=arguments.run_script_on,
        ready_timeout_secs=arguments.ready_timeout,
        allowed=arguments.allow,
        tls_files=arguments.tls,
        tls_base_port=arguments.tls_base_port,
    )


def _set_environment(arguments: argparse.Namespace) -> None:
    """Sets threads and protocol of this process, and of the one that it becomes."""
    os.environ.update(
        threads.environment(arguments.inter_op_threads, arguments.intra_op_threads)
    )
    os.environ[wire.VARIABLE] = arguments.rpc_layer or wire.asked_for(os.environ)


def _serve(arguments: argparse.Namespace) -> int:
    from tf_syncrep.python.distribute import server

    _set_environment(arguments)
    server.serve(arguments.allow, arguments.tls, arguments.tls_base_port)


def _serve_model(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    name = arguments.name or os.path.basename(os.path.abspath(folder))
    if not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(
            f"--name must be of letters, digits, '_', '.' and '-'. Received: {name!r}"
        )
    if os.path.isfile(folder):
        raise UsageError(f"FOLDER must be a folder. Received: {folder!r}")
    try:
        import aiohttp
    except ImportError:
        raise UsageError(
            "aiohttp, which answers requests, is not installed. Install it: "
            f"{sys.executable} -m pip install aiohttp"
        ) from None
    del aiohttp
    from tf_syncrep.python.serving import http_server

    try:
        http_server.serve(folder, name, arguments.host, arguments.port)
    except http_server.ServeError as error:
        raise UsageError(str(error)) from None
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    del arguments
    from tf_syncrep.python import doctor

    return doctor.main()


def _report(arguments: argparse.Namespace) -> int:
    from tf_syncrep.python.report import command

    try:
        if arguments.live:
            from tf_syncrep.python.report import live

            live.watch(arguments.logdir)
            return 0
        print(command.write(arguments.logdir, arguments.output))
    except command.ReportError as error:
        raise UsageError(str(error)) from None
    return 0
