"""A training that publishes; the benchmark tells it what to do.

    python publish_trainer.py HOST PORT

The chief of a cluster, which trains as `checkpoint_trainer.py` does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import checkpoint_trainer
import numpy as np
import serving
import tensorflow as tf
from embedding_batches import batches

import tf_syncrep as tfs

_BATCHES = 1024
# Only every so many rows are trained, so that a publication has one percent of them.
_APART = 100


class Trainer(checkpoint_trainer.Trainer):
    """The methods that the benchmark calls in this process."""

    def __init__(self, contenders: Mapping[str, Any], model: Mapping[str, Any]):
        """Makes a model, as the other trainer does.

        `model`: has the "published" folder, too.
        """
        super().__init__(contenders, model)
        self._publisher = tfs.keras.Publisher(model["published"], model=self._model)

    def publish(self) -> None:
        """Writes the first publication, which is a SavedModel."""
        self._publisher.publish(wait=True)

    def publish_for(self, secs: float, every_secs: float) -> dict[str, Any]:
        """Publishes for some seconds while the training goes on.

        Returns when each update was made, by its number, on the clock that all
        processes of a machine have; and bytes and rows of each publication.
        """
        first = len(self._updates)
        sizes: list[tuple[int, int]] = []
        end = time.perf_counter() + secs
        while (begin := time.perf_counter()) < end:
            published = self._publisher.publish()
            manifest = published.wait()
            sizes.append((sum(manifest.files.values()), published.rows_written))
            time.sleep(max(0.0, begin + every_secs - time.perf_counter()))
        last = int(manifest.state["iterations"])
        return {
            "times": dict(enumerate(self._updates[first:last], start=first + 1)),
            "sizes": sizes,
            "last": manifest.number,
        }

    def publish_and_predict(self, ids: list[list[int]]) -> tuple[int, list[Any]]:
        """Publishes and predicts, training stopped; returns the number, too."""
        number = self._publisher.publish(wait=True).manifest.number
        return number, self._model(tf.constant(ids, tf.int64)).numpy().tolist()

    def _dataset(self, context: Any) -> tf.data.Dataset:
        model = {**self._settings, "rows": self._settings["rows"] // _APART}
        ids = _APART * batches(model, context.input_pipeline_id, _BATCHES)
        ids = ids.transpose(0, 2, 1).astype(np.int64)
        targets = np.ones([*ids.shape[:2], 1], np.float32)
        return tf.data.Dataset.from_tensor_slices((ids, targets)).repeat()


if __name__ == "__main__":
    serving.serve(Trainer)
