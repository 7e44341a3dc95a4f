"""`tf-syncrep serve-model`, as a user runs it."""

import asyncio
import json
import os
import re
import signal
import urllib.error
import urllib.request

import commands
import numpy as np
import published_models as models
import pytest
import tensorflow as tf
from waiting import until

import tf_syncrep as tfs

web = pytest.importorskip("aiohttp.web", reason="it answers requests")
http_server = pytest.importorskip("tf_syncrep.python.serving.http_server")

SHORT = {"candidate": [1, 2], "watched": [[1, 2, 3], [4, 5, 6]]}
ROWS = [
    {"candidate": 1, "watched": [1, 2, 3]},
    {"candidate": 2, "watched": [4, 5, 6]},
]


class Server:
    """The command, and requests to it."""

    def __init__(self, folder, *options):
        self.command = commands.Command("serve-model", folder, "--port", 0, *options)

    def __enter__(self):
        self.command.__enter__()
        line = self.command.wait_for_line(r"serving (http://\S+)/v1/models/(\S+)")
        self.root, self.name = line.groups()
        return self

    def __exit__(self, *error):
        self.command.__exit__(*error)

    def ask(self, path, body=None):
        """Returns the status, and what is answered."""
        if not isinstance(body, (bytes, type(None))):
            body = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(self.root + path, body, 60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def predict(self, body):
        return self.ask(f"/v1/models/{self.name}:predict", body)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving") / "published"
    model = models.make()
    models.train(model, np.random.default_rng(0))
    tfs.keras.Publisher(folder, model=model).publish()
    return folder, model


@pytest.fixture(scope="module")
def server(published):
    folder, _ = published
    with Server(folder) as found:
        until(lambda: found.ask("/healthz")[0] == 200)
        yield found


def test_rows_and_columns_are_answered_with_the_trainers_predictions(server, published):
    _, model = published
    wanted = model({name: tf.constant(x) for name, x in SHORT.items()}).numpy()
    for body, key in (
        ({"inputs": SHORT}, "outputs"),
        ({"instances": ROWS, "signature_name": "serving_default"}, "predictions"),
    ):
        status, answer = server.predict(body)
        assert (status, list(answer)) == (200, [key])
        np.testing.assert_array_equal(np.float32(answer[key]), wanted)


def test_status_and_health_tell_the_version(server):
    status = {"error_code": "OK", "error_message": ""}
    found = {"version": "1", "state": "AVAILABLE", "status": status}
    assert server.ask("/v1/models/published") == (
        200,
        {"model_version_status": [found]},
    )
    code, numbers = server.ask("/healthz")
    assert (code, numbers["version"], numbers["lag"]) == (200, 1, 0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "A request must be JSON, .* Received: "),
        (b"[" * 10**5, "A request must be JSON, .* Received: "),
        ([1], r"an object with either .* Received: \[1\]"),
        ({}, r"either `instances`, .* Received: \[\]"),
        ({"inputs": SHORT, "instances": ROWS}, "either `instances`"),
        ({"instances": []}, r"at least one row. Received: \[\]"),
        ({"instances": [1]}, r"by the names of the inputs, \['candidate', 'watched'\]"),
        ({"instances": [{"candidate": 1}]}, r"must have the inputs .* \['candidate'\]"),
        ({"inputs": {"candidate": [1]}}, "must have the inputs"),
        ({"inputs": {"self": [1]}}, r"must have the inputs .* Received: \['self'\]"),
        ({"inputs": {**SHORT, "candidate": ["a"]}}, "`candidate` must be of dtype"),
        ({"inputs": {**SHORT, "candidate": [1.5]}}, "`candidate` must be of dtype"),
        ({"inputs": {**SHORT, "candidate": [2**70]}}, "`candidate` must be of dtype"),
        ({"inputs": {**SHORT, "candidate": [None]}}, "`candidate` must be of dtype"),
        ({"inputs": {**SHORT, "watched": [[1], [1, 2]]}}, "`watched` must be of dtype"),
        ({"inputs": {**SHORT, "watched": [1]}}, "`watched` must have shape"),
        ({"inputs": {**SHORT, "candidate": [1, models.SIZE]}}, str(models.SIZE)),
        ({"inputs": {"candidate": {"b64": "a?=="}}}, "bytes in base64. Received: "),
        ({"signature_name": "apply_delta", "inputs": {}}, "`signature_name` must be"),
    ],
)
def test_bad_requests_are_answered_with_status_400(server, body, message):
    status, answer = server.predict(body)
    assert (status, list(answer)) == (400, ["error"])
    assert re.search(message, answer["error"]), answer


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/models/other:predict", {"instances": ROWS}, 404),
        ("/v1/models/other", None, 404),
        ("/v2", None, 404),
        ("/v1/models/published:predict", None, 405),
    ],
)
def test_unknown_models_and_paths_are_not_found(server, path, body, status):
    code, answer = server.ask(path, body)
    assert (code, list(answer)) == (status, ["error"])


def test_it_waits_for_the_first_version_and_ends_by_sigterm(tmp_path):
    folder = tmp_path / "published"
    with Server(folder, "--name", "words") as server:
        assert server.ask("/healthz")[0] == 503
        assert server.predict({"instances": ["a"]})[0] == 503
        _, answer = server.ask("/v1/models/words")
        (status,) = answer["model_version_status"]
        assert (status["version"], status["state"]) == ("0", "LOADING")
        words = tf.keras.Input((), dtype="string", name="word")
        ids = tf.keras.layers.StringLookup(vocabulary=["a", "b"])(words)
        model = tf.keras.Model(words, tfs.keras.Embedding(3, 2)(ids))
        model.compile(tfs.keras.AdamAsync(), loss="mse")
        tfs.keras.Publisher(folder, model=model).publish()
        server.command.wait_for_line("version 1: 0 updates")
        assert server.ask("/healthz")[0] == 200
        # A model of one input needs no names; bytes have a form of their own.
        wanted = model(tf.constant(["a", "b"])).numpy().tolist()
        answer = {"predictions": wanted}
        assert server.predict({"instances": ["a", {"b64": "Yg=="}]}) == (200, answer)
        assert server.predict({"inputs": ["a", "b"]}) == (200, {"outputs": wanted})
        os.kill(server.command.process.pid, signal.SIGTERM)
        assert server.command.wait() == 0


def test_a_signal_that_comes_as_it_ends_is_no_error(published, monkeypatch):
    """A shell and its user may both send one."""
    folder, _ = published
    before = {x: signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)}

    async def start(site, start=web.TCPSite.start):
        await start(site)
        os.kill(os.getpid(), signal.SIGTERM)

    def run(main, run=asyncio.run):
        run(main)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(web.TCPSite, "start", start)
    monkeypatch.setattr(asyncio, "run", run)
    try:
        http_server.serve(str(folder), "published", "localhost", 0)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


class Words(tf.keras.Model):
    """A model with outputs of several kinds."""

    def __init__(self):
        super().__init__()
        self.embedding = tfs.keras.Embedding(4, 2, embeddings_initializer="zeros")

    def call(self, words):
        vectors = self.embedding(tf.strings.length(words))
        return {
            "word": words,
            "word_bytes": words,
            "numbers": tf.concat([vectors / 0.0, vectors - np.inf], axis=-1),
            "most": tf.reduce_max(tf.strings.length(words)),
        }


def test_outputs_are_answered_in_the_forms_of_tensorflow_serving(tmp_path):
    model = Words()
    model.compile("sgd", "mse")
    model(tf.constant(["a"]))
    signature = tf.TensorSpec([None], tf.string, "words")
    tfs.keras.Publisher(tmp_path, model=model, input_signature=signature).publish()
    with Server(tmp_path, "--name", "words") as server:
        until(lambda: server.ask("/healthz")[0] == 200)
        status, answer = server.predict({"inputs": ["a", {"b64": "/w=="}]})
        numbers = [np.nan, np.nan, -np.inf, -np.inf]
        wanted = {
            "word": ["a", {"b64": "/w=="}],
            "word_bytes": [{"b64": "YQ=="}, {"b64": "/w=="}],
            "numbers": [numbers, numbers],
            "most": 1,
        }
        assert status == 200
        np.testing.assert_equal(answer, {"outputs": wanted})
        status, answer = server.predict({"instances": ["a"]})
        assert (status, "'most' is not of rows" in answer["error"]) == (400, True)


def test_one_that_is_killed_leaves_nothing_behind(published):
    folder, model = published

    def files():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before = files()
    wanted = model({name: tf.constant(x) for name, x in SHORT.items()}).numpy()
    for _ in range(2):
        with Server(folder) as server:
            until(lambda server=server: server.ask("/healthz")[0] == 200)
            _, answer = server.predict({"inputs": SHORT})
            np.testing.assert_array_equal(np.float32(answer["outputs"]), wanted)
            server.command.process.kill()
            server.command.wait()
    assert files() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([__file__], "FOLDER must be a folder. Received: "),
        (["folder", "--port", "65536"], "must be at most 65535. Received: 65536"),
        (["folder", "--name", "a/b"], "--name must be of letters, .* Received: 'a/b'"),
        (["folder", "--host", "192.0.2.1"], "cannot listen at 192.0.2.1, port 8501: "),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    result = commands.run("serve-model", *arguments)
    assert result.process.returncode == 2
    assert re.search(f"^tf-syncrep serve-model: error: .*{message}", result.stderr[-1])


def test_without_aiohttp_the_remedy_is_one_line(tmp_path):
    (tmp_path / "aiohttp.py").write_text("raise ModuleNotFoundError('aiohttp')")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"PYTHONPATH": os.pathsep.join(paths)}
    result = commands.run("serve-model", "folder", env=env)
    assert (result.process.returncode, result.stdout) == (2, [])
    assert re.search(
        r"aiohttp, .* is not installed\. .* -m pip install aiohttp", result.stderr[-1]
    )
