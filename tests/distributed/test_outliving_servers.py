"""Servers that outlive their clients: trainings follow each other on the same servers.

Workers and parameter servers serve, and clients train through them, as TensorFlow's
mnist_replica.py does with `--existing_servers`. When new clients come, the servers
still have the variables, local ones too, the gate, and what the last clients held of
it. Leases are ten minutes long here.

With TensorFlow 2.21's own class, the second training hangs in this scenario.
"""

import json
import pathlib
import signal
import sys

import clusters
import output_lines
import programs
import pytest

pytestmark = pytest.mark.ci

PROGRAM = pathlib.Path(__file__).parent / "supervisor_program.py"
STEPS = 4
TOO_MANY = 10**6


class Client:
    """A process that trains through the server of a worker."""

    def __init__(self, cluster, worker, style, batches):
        name = f"worker-{worker}"
        arguments = {
            "style": style,
            "batches": batches,
            "target": f"grpc://{cluster.address(name)}",
            "quorum": 3,
            "total": 3,
            # All of them take part in each step.
            "strict": True,
        }
        self._lines = output_lines.Lines()
        self.process = programs.Program(
            [sys.executable, str(PROGRAM), json.dumps(arguments)],
            cluster.environment(name),
            self._lines.add,
        )

    @property
    def output(self):
        return "\n".join(self._lines.of())

    def wait_for(self, pattern, occurrence=1):
        self._lines.wait_for(pattern, occurrence)

    def assert_ends(self):
        assert self.process.wait(clusters.DEADLINE_SECS), self.output
        assert self.process.exit_status == 0, self.output

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Clients:
    """The clients of all trainings; none of them is left behind."""

    def __init__(self, cluster, style):
        self._cluster = cluster
        self._style = style
        self._started = []

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for client in self._started:
            client.kill()

    def start(self, worker):
        # The first client is the chief. When it ends, training ends for all.
        batches = TOO_MANY if worker else STEPS
        client = Client(self._cluster, worker, self._style, batches)
        self._started.append(client)
        return client

    def train(self, order):
        """Trains, and checks that all took part, from the beginning to the end."""
        clients = {}
        for worker in order:
            clients[worker] = self.start(worker)
            if worker != order[-1]:
                # It has got this far, or trains already: the next one comes later.
                clients[worker].wait_for("building is done")
        for client in clients.values():
            client.assert_ends()
        assert f"weight {[-0.5 * STEPS, STEPS]}" in clients.pop(0).output
        for client in clients.values():
            assert "end of input" in client.output

    def train_and_die(self):
        clients = [self.start(worker) for worker in (1, 2, 0)]
        clients[1].wait_for("ran", occurrence=2)
        for client in clients:
            client.kill()


@pytest.fixture(
    params=[
        "unstopped",
        pytest.param("oldest", marks=pytest.mark.slow),
        pytest.param("chief_only_hooks", marks=pytest.mark.slow),
    ]
)
def clients(request):
    # Clients are no tasks, and need the tests' modules.
    env = programs.environment()
    with (
        clusters.Cluster(3, num_ps=1, chief=False, env=env) as cluster,
        Clients(cluster, request.param) as clients,
    ):
        yield clients


def test_trainings_follow_one_another_whoever_comes_first_and_however_they_end(clients):
    clients.train((0, 1, 2))
    clients.train((1, 2, 0))
    clients.train_and_die()
    clients.train((2, 1, 0))
    clients.train_and_die()
    clients.train((0, 2, 1))
