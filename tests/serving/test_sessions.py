"""What is published, in a session: TensorFlow Serving loads and calls it there."""

import numpy as np
import published_models as models
import pytest
import tensorflow as tf

import tf_syncrep as tfs
from tf_syncrep.python.embedding.served_tables import PublishedTable

v1 = tf.compat.v1
GROWING = tfs.keras.Dynamic(models.SIZE, unused_for=2)


class Session:
    """A SavedModel in a session of its own."""

    def __init__(self, folder):
        graph = tf.Graph()
        self._session = v1.Session(graph=graph)
        with graph.as_default():
            meta = v1.saved_model.load(self._session, ["serve"], str(folder))
        self._signatures = meta.signature_def

    def __call__(self, name, given):
        signature = self._signatures[name]
        fed = {signature.inputs[key].name: np.asarray(x) for key, x in given.items()}
        assert len(fed) == len(signature.inputs)
        wanted = {key: x.name for key, x in signature.outputs.items()}
        return self._session.run(wanted, fed)


@pytest.mark.parametrize(
    ("size", "strings"),
    [(models.SIZE, False), (GROWING, False), (GROWING, True)],
    ids=["fixed", "growing", "strings"],
)
def test_it_predicts_and_is_updated(tmp_path, size, strings):
    wanted = models.published(
        tmp_path, versions=4, size=size, strings=strings, full_every=3
    )
    probe = {name: x.numpy() for name, x in models.probe(strings).items()}
    for first, last in ((1, 3), (4, 4)):
        session = Session(tmp_path / str(first))
        for version in range(first, last + 1):
            if version > first:
                answer = session(
                    "apply_delta", tfs.serving.read_delta(tmp_path, version)
                )
                assert answer["version"] == version
            found = session("serving_default", probe)["output_0"]
            np.testing.assert_array_equal(found, wanted[version])
    with pytest.raises(tf.errors.InvalidArgumentError, match="`base` must be"):
        session("apply_delta", tfs.serving.read_delta(tmp_path, 4))


def test_a_table_without_changes_may_be_given_as_json_gives_it():
    table = PublishedTable([4], tf.float32, 2)
    none = {"places": tf.zeros([0], tf.int64), "vectors": tf.zeros([0])}
    assert table.apply(none) == 0
