"""Calls the library of the GPU tests where there is no GPU: it must only say so."""

import ctypes
import sys


def main() -> None:
    """Asks for the size of a workspace, for which CUDA looks for its device."""
    harness = ctypes.CDLL(sys.argv[1])
    workspace_bytes = harness.tf_syncrep_adam_async_workspace_bytes
    workspace_bytes.restype = ctypes.c_char_p
    rows = (ctypes.c_int64 * 5)(10, 4, 3, 0, 0)  # a GpuSparseRows
    error = workspace_bytes(rows, ctypes.byref(ctypes.c_size_t()))
    print("Without a GPU:", error.decode() if error else "no error: there is one")


if __name__ == "__main__":
    main()
