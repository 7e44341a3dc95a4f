"""Compiles programs of benchmarks, and floor.cc for this machine, and calls that."""

from __future__ import annotations

import ctypes
import functools
import pathlib
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "benchmarks" / "floor.cc"
# Without -fno-math-errno a loop with a square root is not vectorised.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-std=c++17", "-pthread")

_floats = ctypes.c_void_p
_int64s = ctypes.c_void_p
_int32s = ctypes.c_void_p


@functools.cache
def program(*sources: str) -> tuple[pathlib.Path, tempfile.TemporaryDirectory]:
    """A compiled program, and the folder that keeps it while this process runs.

    `sources`: paths below the repository's root. Raises as `library` does.
    """
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "program"
    flags = ("-O3", "-DNDEBUG", "-std=c++17", "-pthread", f"-I{ROOT}")
    subprocess.run(["g++", *flags, *sources, "-o", str(path)], check=True, cwd=ROOT)
    return path, folder


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled loops; compiled once in a process.

    Raises subprocess.CalledProcessError: if g++ fails. Raises FileNotFoundError: if
    there is no g++.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "libfloor.so"
        subprocess.run(
            ["g++", *FLAGS, "-shared", "-fPIC", str(SOURCE), "-o", str(path)],
            check=True,
        )
        loaded = ctypes.CDLL(str(path))
    c_float, c_int64 = ctypes.c_float, ctypes.c_int64
    adam = [c_float, c_float, c_float, c_float]
    tables = [_floats, _floats, _floats, _floats]
    loaded.floor_new.argtypes = [c_int64]
    loaded.floor_new.restype = _floats
    loaded.floor_delete.argtypes = [_floats]
    loaded.floor_sparse_adam.argtypes = [*tables, _int64s, c_int64, c_int64, *adam]
    loaded.floor_dense_adam.argtypes = [*tables, c_int64, *adam]
    loaded.floor_sparse_rule.argtypes = [
        *(ctypes.c_int, _floats, _floats, _floats, _floats),
        *(_int64s, c_int64, c_int64, _floats),
    ]
    loaded.floor_copy.argtypes = [_floats, _floats, c_int64]
    loaded.floor_lookup.argtypes = [
        *(_int32s, _int32s, _floats, c_int64, c_int64, c_int64),
        *(_int32s, c_int64, _floats),
    ]
    loops = ("sparse_adam", "sparse_rule", "dense_adam", "copy", "lookup")
    for name in ("delete", *loops):
        getattr(loaded, f"floor_{name}").restype = None
    return loaded


class Memory:
    """Floats outside of NumPy, which asks for huge pages where TensorFlow does not."""

    def __init__(self, shape: tuple[int, ...]):
        size = int(np.prod(shape))
        self.pointer = library().floor_new(size)
        if not self.pointer:
            raise MemoryError(f"no memory for {size} floats")
        as_floats = ctypes.cast(self.pointer, ctypes.POINTER(ctypes.c_float))
        self.array = np.ctypeslib.as_array(as_floats, (size,)).reshape(shape)

    def __del__(self):
        if getattr(self, "pointer", None):
            library().floor_delete(self.pointer)
