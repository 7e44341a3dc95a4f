"""The function of the guide that reads deltas, beside TensorFlow Serving's sessions."""

import markdown_code
import numpy as np
import published_models as models
import pytest
import tensorflow as tf

import tf_syncrep as tfs

PAGE = markdown_code.ROOT / "docs" / "guides" / "serving_online.md"
SIZES = {
    "fixed": models.SIZE,
    "evicting": tfs.keras.Dynamic(models.SIZE, unused_for=2),
}


def read_delta(*args):
    (code,) = (x.code for x in markdown_code.blocks(PAGE) if "def read_delta" in x.code)
    names = {"tf": tf}
    exec(code, names)
    return names["read_delta"](*args)


@pytest.mark.parametrize("kind", SIZES)
def test_a_session_goes_from_version_to_version_by_it(tmp_path, kind):
    model, draw = models.make(SIZES[kind]), np.random.default_rng(1)
    publisher = tfs.keras.Publisher(tmp_path, model=model)
    wanted = []
    for version in range(1, 6):
        for _ in range(version % 4 and 3):  # The fourth has no changes.
            models.train(model, draw, models.SIZE if version % 3 else models.SIZE // 8)
            tfs.keras.maintain_tables(model)
        publisher.publish()
        wanted.append(model(models.probe()).numpy())
    probe = {name: x.numpy() for name, x in models.probe().items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "1"))

        def run(signature, output, given):
            found = loaded.signature_def[signature]
            return session.run(
                found.outputs[output].name,
                {found.inputs[name].name: x for name, x in given.items()},
            )

        np.testing.assert_array_equal(
            run("serving_default", "output_0", probe), wanted[0]
        )
        for version in range(2, 6):
            delta = read_delta(tmp_path, version, 1)
            assert run("apply_delta", "version", delta) == version
            np.testing.assert_array_equal(
                run("serving_default", "output_0", probe), wanted[version - 1]
            )
        with pytest.raises(tf.errors.InvalidArgumentError, match="`base` must be"):
            run("apply_delta", "version", delta)
