"""Data that is read once, by several workers."""

from tf_syncrep.python.data.work_queue import WorkQueue

__all__ = ["WorkQueue"]
