"""`tf-syncrep doctor`: what is installed, what is wrong, and the remedy.

It works where tf_syncrep itself does not: without TensorFlow, with another version of
TensorFlow, and without the op library. It names each of these problems, and the remedy.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from types import ModuleType

from tf_syncrep.python.distribute import cluster, wire
from tf_syncrep.python.distribute.readiness import grpc_answers
from tf_syncrep.python.ops import op_library
from tf_syncrep.python.version import VERSION

OLDEST_TENSORFLOW, NEWEST_TENSORFLOW = "2.15", "2.22"

# Each of them has the module `tensorflow`, and pip lets them overwrite each other.
_TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly")
# How many tasks of a cluster are asked at the same time.
_ASKED_AT_ONCE = 64
_NAMED_TASKS = 3
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


class Report:
    """Facts and problems, in the order in which they were found."""

    def __init__(self):
        self.facts: list[tuple[str, str]] = []
        self.problems: list[str] = []

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.facts) + 2
        lines = [f"{label:<{width}}{value}" for label, value in self.facts]
        if not self.problems:
            return "\n".join([*lines, "", "All is well."])
        count = len(self.problems)
        lines += ["", f"{count} problem{'s' if count > 1 else ''}:"]
        for number, problem in enumerate(self.problems, start=1):
            lines.append(f"{number}. " + problem.strip().replace("\n", "\n   "))
        return "\n".join(lines)


def main() -> int:
    """Prints the report.

    Returns the exit status: 0 if all is well, 1 if there is a problem.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    report = examine()
    print(report)
    return 1 if report.problems else 0


def examine() -> Report:
    """Finds out what is installed here, and what is wrong with it."""
    report = Report()
    report.facts += [
        ("tf_syncrep", f"{VERSION} in {_package_folder()}"),
        ("Python", f"{platform.python_version()}, {sys.executable}"),
    ]
    tf = _examine_tensorflow(report)
    report.facts.append(("NumPy", _distribution_version("numpy") or "none"))
    if _examine_library(report, tf):
        _examine_private_names(report)
    _examine_gpu_driver(report)
    report.facts += [
        ("CPU level", cpu_level(_read_cpu_flags())),
        ("C++ compiler", _tool_version("g++")),
        ("CMake", _tool_version("cmake")),
    ]
    _examine_tf_config(report)
    return report


def gpu_driver_version() -> str | None:
    """Returns the CUDA version of the GPU driver, or None if there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def cpu_level(flags: set[str]) -> str:
    """Returns the instruction set that the kernels choose on a CPU.

    `flags`: the features of the CPU, as /proc/cpuinfo names them.
    """
    if flags >= _AVX512:
        return "avx512"
    return "avx2" if "avx2" in flags else "baseline"


def _examine_tensorflow(report: Report) -> ModuleType | None:
    """Reports on TensorFlow and Keras; returns the module if it can be used."""
    installed = {}
    for name in _TENSORFLOW_DISTRIBUTIONS:
        version = _distribution_version(name)
        if version:
            installed[name] = version
    try:
        import tensorflow as tf

        version = tf.__version__
    except Exception as error:
        # It may be any exception: an unsuitable NumPy causes an AttributeError here.
        report.facts.append(("TensorFlow", "none that can be imported"))
        report.problems.append(
            f"TensorFlow cannot be imported: {type(error).__name__}: {error}\n"
            f"  {sys.executable} -m pip install '{_wanted_tensorflow()}'"
            "    (or tensorflow-cpu)"
        )
        return None
    names = ", ".join(f"{name} {number}" for name, number in installed.items())
    report.facts += [
        ("TensorFlow", f"{version} ({names or 'of no distribution'})"),
        ("  ABI flags", _abi_flags(tf)),
        ("  GPUs", str(len(tf.config.list_physical_devices("GPU")))),
    ]
    _examine_keras(report, tf)
    if len(set(installed.values())) > 1:
        report.problems.append(
            f"{names} are installed together and own the same files. Keep one:\n"
            f"  {sys.executable} -m pip uninstall -y {' '.join(installed)} && "
            f"{sys.executable} -m pip install '{_wanted_tensorflow()}'"
        )
    if not _is_supported(version):
        report.problems.append(
            f"TensorFlow {version} is not supported; {OLDEST_TENSORFLOW} to "
            f"{NEWEST_TENSORFLOW} are. Install one, and tf_syncrep for it:\n"
            f"  {sys.executable} -m pip install 'tensorflow=={NEWEST_TENSORFLOW}.*'"
            f"    (or tensorflow-cpu)\n"
            f"  {op_library.install_command(NEWEST_TENSORFLOW)}"
        )
        return None
    return tf


def _examine_library(report: Report, tf: ModuleType | None) -> bool:
    """Reports on the op library; returns whether it loads into TensorFlow `tf`."""
    path = op_library.library_path()
    built = op_library.build_info()
    there = os.path.exists(path)
    report.facts.append(("Op library", path if there else f"none at {path}"))
    if built is not None:
        report.facts += [
            ("  built for", f"TensorFlow {built.TF_VERSION}, by {built.COMPILER}"),
            ("  CUDA kernels", built.CUDA_VERSION or "no"),
        ]
    if tf is None and built is not None and there:
        return False  # without its TensorFlow nothing is known of it
    try:
        op_library.load()
    except ImportError as error:
        report.facts.append(("  loads", "no"))
        report.problems.append(str(error))
        return False
    report.facts.append(("  loads", "yes"))
    problem = wire.problem()
    report.facts.append(
        ("  protocol", f"{wire.GRPC} alone: {problem}" if problem else wire.WIRE)
    )
    return True


def _examine_private_names(report: Report) -> None:
    """Reports whether TensorFlow and Keras have the private names that we use."""
    try:
        from tf_syncrep.python.keras.compat import private_names

        lacking = ", ".join(private_names.missing_names())
    except (ImportError, RecursionError) as error:
        report.facts.append(("Private names", "not known: no Keras"))
        if not any("tf.keras cannot be imported" in x for x in report.problems):
            report.problems.append(f"tf_syncrep.keras cannot be imported: {error}")
        return
    report.facts.append(("Private names", f"not {lacking}" if lacking else "all there"))
    if lacking:
        report.problems.append(
            f"TensorFlow or Keras lacks names that tf_syncrep relies on: {lacking}. "
            "Training may be wrong without a word. Install a Keras that was tried:\n"
            f"  {sys.executable} -m pip install 'keras<{private_names.UNTRIED_KERAS}'"
        )


def _examine_gpu_driver(report: Report) -> None:
    """Reports on the driver, and whether it can run the library's GPU kernels."""
    driver = gpu_driver_version()
    report.facts.append(("GPU driver", f"of CUDA {driver}" if driver else "none"))
    built = op_library.build_info()
    if driver is None or built is None or built.CUDA_VERSION is None:
        return
    have, want = (
        int(version.split(".")[0]) for version in (driver, built.CUDA_VERSION)
    )
    if have < want:
        report.problems.append(
            f"The GPU kernels were built with CUDA {built.CUDA_VERSION}, and the GPU "
            f"driver, of CUDA {driver}, runs none of a later major version. Update the "
            f"driver, or build them with an nvcc of CUDA {have}:\n"
            f"  CUDACXX=/path/to/nvcc {op_library.build_command()}"
        )


def _examine_tf_config(report: Report) -> None:
    """Reports whether TF_CONFIG is right, and which tasks of its cluster answer."""
    if not os.environ.get("TF_CONFIG", "").strip():
        report.facts.append(("TF_CONFIG", "not set"))
        return
    try:
        task = cluster.read_tf_config()
    except cluster.ClusterConfigError as error:
        report.facts.append(("TF_CONFIG", "wrong"))
        report.problems.append(str(error))
        return
    report.facts.append(("TF_CONFIG", f"{task.task_type} {task.task_index}"))
    places = [
        (job, index, address)
        for job, addresses in task.cluster.items()
        for index, address in enumerate(addresses)
    ]
    with concurrent.futures.ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        unknown = list(pool.map(lambda place: _why_unknown(place[2]), places))
        answers = list(pool.map(lambda place: grpc_answers(place[2]), places))
    for job, addresses in task.cluster.items():
        silent = [
            address
            for (of, _, address), answered in zip(places, answers, strict=True)
            if of == job and not answered
        ]
        found = f"{len(addresses) - len(silent)} of {len(addresses)} answer"
        if silent:
            found += f"; not {_first(silent)}"
        report.facts.append((f"  {job}", found))
    reasons = [
        f"TF_CONFIG['cluster'][{job!r}][{index}] must have a host that is known here. "
        f"Received: {address!r} ({reason})"
        for (job, index, address), reason in zip(places, unknown, strict=True)
        if reason
    ]
    report.problems += reasons[:_NAMED_TASKS]
    if len(reasons) > _NAMED_TASKS:
        report.problems[-1] += f" and {len(reasons) - _NAMED_TASKS} more"


def _why_unknown(address: str) -> str | None:
    """Returns why a host has no network address; None if it has one."""
    try:
        socket.getaddrinfo(*cluster.split_address(address))
    except OSError as error:
        return error.strerror
    return None


def _first(addresses: list[str]) -> str:
    more = len(addresses) - _NAMED_TASKS
    named = ", ".join(addresses[:_NAMED_TASKS])
    return f"{named} and {more} more" if more > 0 else named


def _is_supported(tf_version: str) -> bool:
    oldest, minor, newest = (
        tuple(map(int, op_library.minor_version(version).split(".")))
        for version in (OLDEST_TENSORFLOW, tf_version, NEWEST_TENSORFLOW)
    )
    return oldest <= minor <= newest


def _package_folder() -> str:
    return os.path.dirname(op_library.library_path())


def _wanted_tensorflow() -> str:
    """Returns the requirement for the TensorFlow that the library was built for."""
    built = op_library.build_info()
    minor = (
        op_library.minor_version(built.TF_VERSION)
        if built is not None
        else NEWEST_TENSORFLOW
    )
    return f"tensorflow=={minor}.*"


def _abi_flags(tf: ModuleType) -> str:
    flags = tf.sysconfig.get_compile_flags()
    return " ".join(flag for flag in flags if not flag.startswith("-I"))


def _examine_keras(report: Report, tf: ModuleType) -> None:
    """Reports which distribution tf.keras is."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS")
    setting = f" (TF_USE_LEGACY_KERAS={legacy})" if legacy else ""
    try:
        name = tf.keras.Model.__module__.partition(".")[0]
    except ImportError as error:
        found = "none that can be imported"
        report.problems.append(
            f"tf.keras cannot be imported{setting}: {error}\n"
            "  unset TF_USE_LEGACY_KERAS    (or install the Keras 2 it stands for)\n"
            f"  {sys.executable} -m pip install --no-deps "
            f"'tf_keras<={op_library.minor_version(tf.__version__)}.99'"
        )
    else:
        version = _distribution_version(name)
        if version is None:  # TensorFlow before a release may bring the nightly one.
            name += "-nightly"
            version = _distribution_version(name)
        found = f"{name} {version}"
    report.facts += [
        ("tf.keras", found + setting),
        ("  tf_keras", _distribution_version("tf_keras") or "none"),
    ]


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_cpu_flags() -> set[str]:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()


def _tool_version(name: str) -> str:
    tool = shutil.which(name)
    if tool is None:
        return "none (only a build needs it)"
    result = subprocess.run(
        [tool, "--version"], capture_output=True, text=True, check=False
    )
    return (result.stdout or result.stderr).partition("\n")[0]
