"""Files of the folder of checkpoints."""

import concurrent.futures
import threading

import tensorflow as tf
from output_lines import DEADLINE_SECS

from tf_syncrep.python.checkpoint.directory import Directory


def test_two_threads_that_write_the_same_file_both_succeed(tmp_path, monkeypatch):
    rename, both_have_written = tf.io.gfile.rename, threading.Barrier(2)

    def wait_and_rename(source, target, overwrite):
        both_have_written.wait(DEADLINE_SECS)
        Directory(tmp_path).delete_leftovers()  # None of them is left over.
        rename(source, target, overwrite)

    monkeypatch.setattr(tf.io.gfile, "rename", wait_and_rename)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        writes = [
            threads.submit(Directory._write, str(tmp_path / "progress.json"), text)
            for text in ("one", "two")
        ]
    assert [write.exception() for write in writes] == [None, None]
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    assert (tmp_path / "progress.json").read_text() in ("one", "two")
