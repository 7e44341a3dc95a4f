"""What a follower of a v1 training serves, beside the same training in one process."""

import numpy as np
import published_models
import v1_checkpoint_models as models

import tf_syncrep as tfs


def adam():
    return tfs.train.AdamAsyncOptimizer(0.01)


class Recorded(published_models.Recorded):
    """Records all variables at each version of a synchronous training."""

    def __init__(self, folder):
        super().__init__(folder, {"ids": np.arange(models.ROWS)})

    def predict(self):
        return {name: x.numpy() for name, x in self.follower(**self._request).items()}

    def assert_right(self, parts, versions=None):
        """Asserts that they are those of the versions' updates; returns the last one.

        `versions`: some of them; None for all.
        """
        versions = versions or [*self.predictions]
        updates = [self.updates[version] for version in versions]
        wanted = models.trained_alone(adam, updates, use_resource=True, parts=parts)
        names = [f"table/part_{i}" for i in range(parts)] if parts else ["table"]
        for version, update in zip(versions, updates, strict=True):
            found, values = self.predictions[version], wanted[update]
            table = np.concatenate([values[name] for name in names])
            np.testing.assert_array_equal(found["rows"], table, str(version))
            np.testing.assert_array_equal(found["bias"], values["bias"], str(version))
        return max(updates)
