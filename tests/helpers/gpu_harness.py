"""Calls the CUDA kernels on CuPy arrays, without TensorFlow.

`library()` builds the launches of `tf_syncrep/cc/lib/cuda` into a small library with C
names (`tests/gpu/launch_c_api.cc`) and loads it. This needs a GPU, nvcc, CMake and
CuPy; `missing()` says which of these are missing. So does this file as a script, whose
arguments are the required Python packages.
"""

import ctypes
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import adam_async_reference as reference
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
PACKAGES = ("cupy", "ml_dtypes")
DTYPES = ("float16", "bfloat16", "float32", "float64")


def _enumerators(header: str, enum: str) -> dict[str, int]:
    """Returns the values of an enum of `cc/lib` by name: "add_two" for kAddTwo."""
    text = (ROOT / "tf_syncrep/cc/lib" / header).read_text()
    body = text.partition(f"enum class {enum} {{")[2].partition("}")[0]
    names = re.findall(r"\bk(\w+)", re.sub("//.*", "", body))
    return {
        re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): value
        for value, name in enumerate(names)
    }


FORMULAS = _enumerators("rules/adam_async.h", "AdamAsyncFormula")
DENSE_PASSES = _enumerators("accumulator_dense.h", "DensePass")
# A sum on a GPU keeps one gradient, and so never adds many in one pass.
DENSE_PASSES.pop("add_many")
# The relative error of one step, most of which is the rounding of the result.
RELATIVE_ERROR = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 1e-13}
HYPER_PARAMETERS = {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}


def missing(packages: Sequence[str] = PACKAGES) -> str | None:
    """Says what the GPU tests need and do not find, or None if nothing is missing."""
    if compute_capability() is None:
        return "there is no NVIDIA GPU here, or no driver for it"
    if nvcc() is None:
        return "nvcc is not on PATH, nor is CUDACXX one"
    if shutil.which("cmake") is None:
        return "cmake is not on PATH"
    for module in packages:
        if importlib.util.find_spec(module) is None:
            return f"the Python package {module} is not installed"
    return None


def nvcc() -> str | None:
    """Returns the compiler that CMake takes for CUDA, or None if there is none."""
    return shutil.which(os.environ.get("CUDACXX", "nvcc"))


@functools.cache
def compute_capability() -> str | None:
    """Returns the architecture of the first GPU, such as "90", or None without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return None
    if count.value == 0:
        return None
    parts = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        part = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, 0):
            return None
        parts.append(str(part.value))
    return "".join(parts)


def skip_without_memory(num_bytes: int) -> None:
    """Skips the test unless this much of the GPU's memory is free."""
    import cupy
    import pytest

    cupy.get_default_memory_pool().free_all_blocks()
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < num_bytes:
        pytest.skip(f"wants {num_bytes >> 30} GiB of GPU memory; {free >> 30} are free")


@functools.cache
def library() -> ctypes.CDLL:
    """Builds the launches for the GPU that is here, and loads them."""
    architecture = f"{compute_capability()}-real"
    for command in (
        [
            "cmake",
            f"-S{ROOT}",
            f"-B{BUILD}",
            "-DTF_SYNCREP_PLUGIN=OFF",
            "-DTF_SYNCREP_CUDA_HARNESS=ON",
            f"-DTF_SYNCREP_CUDA_ARCHITECTURES={architecture}",
        ],
        ["cmake", "--build", str(BUILD), "--parallel", str(os.cpu_count() or 1)],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{command}\n{result.stdout}{result.stderr}")
    loaded = ctypes.CDLL(str(BUILD / "cmake/cuda/libtf_syncrep_cuda_harness.so"))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in {
        "tf_syncrep_adam_async_dense": [pointer, integer, pointer, pointer],
        "tf_syncrep_adam_async_workspace_bytes": [pointer, pointer],
        "tf_syncrep_adam_async_sparse": [
            *[pointer] * 4,
            ctypes.c_size_t,
            pointer,
            pointer,
        ],
        "tf_syncrep_accumulator_dense_pass": [pointer, pointer],
    }.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = ctypes.c_char_p
    return loaded


def check(error: bytes | None) -> None:
    """Raises the error that a launch has returned."""
    if error is not None:
        raise RuntimeError(error.decode())


def numpy_dtype(name: str) -> np.dtype:
    """Returns the NumPy dtype of that name, bfloat16 too."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def slot_dtype(name: str) -> np.dtype:
    """Returns the dtype of slots and hyper-parameters of variables of that dtype."""
    return np.dtype(np.float64 if name == "float64" else np.float32)


def random_array(seed: int, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Numbers around zero, none of them so small that tolerances fail."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], size=shape)
    return np.asarray(signs * random.uniform(0.25, 2.0, size=shape)).astype(dtype)


def random_state(seed: int, shape: Any, dtype: str) -> reference.State:
    """Returns a state as after four steps, in the dtypes that the kernels require."""
    slot = slot_dtype(dtype)
    return reference.State(
        random_array(seed, shape, numpy_dtype(dtype)),
        random_array(seed + 1, shape, slot),
        np.square(random_array(seed + 2, shape, slot)),
        np.array(HYPER_PARAMETERS["beta1"] ** 5, slot),
        np.array(HYPER_PARAMETERS["beta2"] ** 5, slot),
    )


def to_gpu(array: np.ndarray, offset: int = 0) -> Any:
    """Returns a copy in the GPU's memory, `offset` elements after an aligned address.

    CuPy does not know bfloat16, so elements are unsigned integers of their size.
    """
    import cupy

    bits = np.dtype(f"uint{8 * array.dtype.itemsize}")
    memory = cupy.empty(array.size + offset, bits)[offset:]
    memory.set(np.ascontiguousarray(array).reshape(-1).view(bits))
    return memory


def to_host(memory: Any, like: np.ndarray) -> np.ndarray:
    """Reads the GPU's memory, with the dtype and shape of `like`."""
    return memory.get().view(like.dtype).reshape(like.shape)


def deliver_late(stream: Any, *pairs: tuple[Any, Any]) -> None:
    """Copies arrays in a stream that has been busy for a while.

    So a kernel in another stream finds the old contents.

    `stream`: a stream that does not wait for the default stream.
    """
    import cupy

    cupy.cuda.Device().synchronize()
    with stream:
        busy = cupy.empty(1 << 28, np.uint8)
        for _ in range(64):
            cupy.copyto(busy[1 << 27 :], busy[: 1 << 27])
        for to, array in pairs:
            cupy.copyto(to, array)


class _Variable(ctypes.Structure):
    """The struct of launch_c_api.cc."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("formula", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in reference.State._fields],
        *[(name, ctypes.c_void_p) for name in HYPER_PARAMETERS],
        ("rmsprop_momentum", ctypes.c_float),
    )


class _SparseRows(ctypes.Structure):
    """GpuSparseRows of cc/lib/cuda/adam_async.h."""

    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("row_size", ctypes.c_int64),
        ("num_indices", ctypes.c_int64),
        ("indices", ctypes.c_void_p),
        ("is_int64", ctypes.c_bool),
    )


class _DensePass(ctypes.Structure):
    """Pass of launch_c_api.cc."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("dense_pass", ctypes.c_int32),
        ("size", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("a", "b", "sum", "out")],
        ("divisor", ctypes.c_double),
    )


def dense_pass(
    name: str,
    dtype: str,
    *,
    a: Any = None,
    b: Any = None,
    sum: Any = None,
    out: Any = None,
    divisor: float = 1.0,
    stream: int = 0,
) -> None:
    """Runs a pass of a dense sum on its arrays on the GPU."""
    arrays = [a, b, sum, out]
    size = next(array.size for array in arrays if array is not None)
    arguments = _DensePass(
        DTYPES.index(dtype),
        DENSE_PASSES[name],
        size,
        *[None if array is None else array.data.ptr for array in arrays],
        divisor,
    )
    check(library().tf_syncrep_accumulator_dense_pass(ctypes.byref(arguments), stream))


class AdamAsync:
    """A variable with its slots on the GPU."""

    def __init__(
        self,
        memory: reference.State,
        dtype: str,
        formula: str = "adam",
        momentum: float = -1.0,
    ):
        self.memory = memory
        scalars = {
            name: to_gpu(np.array(value, slot_dtype(dtype)))
            for name, value in HYPER_PARAMETERS.items()
        }
        self._scalars = scalars  # keeps them alive
        self._variable = _Variable(
            DTYPES.index(dtype),
            FORMULAS[formula],
            *[array.data.ptr for array in memory],
            *[array.data.ptr for array in scalars.values()],
            momentum,
        )
        self._workspace = None
        self._bad_index = to_gpu(np.zeros(2, np.int64))

    @classmethod
    def of(cls, state: reference.State, dtype: str, offset: int = 0, **options: Any):
        """Copies a state to the GPU, `offset` elements behind aligned addresses."""
        memory = reference.State(
            *[to_gpu(array, offset) for array in state[:3]],
            *[to_gpu(array) for array in state[3:]],
        )
        return cls(memory, dtype, **options)

    def read(self, like: reference.State) -> reference.State:
        """Returns what is on the GPU now."""
        return reference.State(
            *[to_host(m, array) for m, array in zip(self.memory, like, strict=True)]
        )

    def dense(self, grad: Any, stream: int = 0) -> None:
        """One dense step, with a gradient on the GPU."""
        check(
            library().tf_syncrep_adam_async_dense(
                ctypes.byref(self._variable),
                self.memory.var.size,
                grad.data.ptr,
                stream,
            )
        )

    def sparse(
        self,
        grad: Any,
        indices: Any,
        row_size: int,
        validate: bool = True,
        stream: int = 0,
    ) -> None:
        """One sparse step; `grad`, and `indices` as CuPy integers, are on the GPU."""
        import cupy

        var = self.memory.var
        rows = _SparseRows(
            var.size // max(row_size, 1),
            row_size,
            indices.size,
            indices.data.ptr,
            indices.dtype.itemsize == 8,
        )
        needed = ctypes.c_size_t()
        check(
            library().tf_syncrep_adam_async_workspace_bytes(
                ctypes.byref(rows), ctypes.byref(needed)
            )
        )
        if self._workspace is None or self._workspace.size < needed.value:
            self._workspace = cupy.empty(needed.value, np.uint8)
        check(
            library().tf_syncrep_adam_async_sparse(
                ctypes.byref(self._variable),
                ctypes.byref(rows),
                grad.data.ptr,
                self._workspace.data.ptr,
                self._workspace.size,
                self._bad_index.data.ptr if validate else None,
                stream,
            )
        )

    def bad_index(self) -> tuple[int, int]:
        """Position and value of the first bad index of the last step, or (-1, ...)."""
        position, index = self._bad_index.get().view(np.int64).tolist()
        return position, index


def expected_dense(state: reference.State, grad: np.ndarray, formula: str):
    """Returns a dense step by the float64 twin."""
    return reference.adam_async_dense(
        *state, **HYPER_PARAMETERS, grad=grad, use_nesterov=formula == "nesterov"
    )


def expected_sparse(state, grad, indices, formula, momentum=-1.0):
    """Returns a sparse step by the float64 twin."""
    return reference.adam_async_sparse(
        *state,
        **HYPER_PARAMETERS,
        grad=grad,
        indices=indices,
        use_nesterov=formula == "nesterov",
        apply_sparse_rmsprop=formula == "rmsprop",
        rmsprop_momentum=momentum,
    )


def assert_close(actual: Any, expected: Any, tolerance: float = 0.0) -> None:
    """Compares states as closely as their dtypes allow, or to `tolerance`."""
    for name, got, want in zip(reference.State._fields, actual, expected, strict=True):
        error = max(RELATIVE_ERROR[got.dtype.name], tolerance)
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=error, atol=error, err_msg=name
        )


def assert_identical(actual: Any, expected: Any) -> None:
    """Compares states bit by bit."""
    for name, got, want in zip(reference.State._fields, actual, expected, strict=True):
        assert got.tobytes() == want.tobytes(), name


if __name__ == "__main__":
    if reason := missing(sys.argv[1:]):
        print(reason)
        sys.exit(1)
