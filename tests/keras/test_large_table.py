"""A table that is larger than any parameter server may be."""

import pathlib
import re
import resource

import clusters
import programs
import pytest

PROGRAM = pathlib.Path(__file__).with_name("large_table_program.py")
SERVERS = 4
ALLOWED_BYTES = 640 * 2**20
ROW_BYTES = 64 * 4

pytestmark = pytest.mark.slow


def data_bytes(pid):
    """How much memory a process has for data."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * int(re.search(r"VmData:\s+(\d+) kB", status).group(1))


def test_table_twice_as_large_as_a_server_may_be_is_trained():
    table_bytes = 2 * ALLOWED_BYTES
    with clusters.Cluster(num_workers=1, num_ps=SERVERS) as cluster:
        pids = [cluster.pid(name) for name in cluster.names("ps")]
        before = [data_bytes(pid) for pid in pids]
        for pid, num_bytes in zip(pids, before, strict=True):
            limit = num_bytes + ALLOWED_BYTES
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
        rows = table_bytes // ROW_BYTES
        losses, devices = programs.run(PROGRAM, rows, env=cluster.environment())
        after = [data_bytes(pid) for pid in pids]
    assert len(set(devices)) == SERVERS
    assert losses[1] < 1e-6 < 0.01 < losses[0]
    for first, last in zip(before, after, strict=True):
        assert table_bytes / SERVERS <= last - first <= ALLOWED_BYTES
