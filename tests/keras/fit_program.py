"""Runs some of `fit_scenarios` by `Model.fit`, alone and with parameter servers.

Argument: their names, and the name of one that runs before `install_fit` was called.
"""

import contextlib
import dataclasses
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import fit_data
import fit_scenarios
import keras_sync_replicas
import keras_variants
import numpy as np
import programs
import tensorflow as tf

import tf_syncrep as tfs


@dataclasses.dataclass
class Side:
    """One of the two sides: without a strategy, or in the scope of one."""

    scope: Callable[[], Any]
    is_stock: bool

    # The methods of the class are those at the time of the call.

    def fit(self, model, *args, **options):
        return tf.keras.Model.fit(model, *args, **options)

    def evaluate(self, model, *args, **options):
        return tf.keras.Model.evaluate(model, *args, **options)

    def predict(self, model, *args, **options):
        return tf.keras.Model.predict(model, *args, **options)

    def compiled(self, make=keras_variants.small_model, **options):
        with self.scope():
            tf.keras.utils.set_random_seed(1)
            model = make()
            make_optimizer = options.pop("make_optimizer", tf.keras.optimizers.Adam)
            options.setdefault("optimizer", make_optimizer(0.05))
            options.setdefault("loss", "mse")
            options.setdefault("metrics", ["mae"])
            # What is expected is computed without functions, whose traces take longer.
            options.setdefault("run_eagerly", self.is_stock)
            model.compile(**options)
        return model

    def trained(self, model, data=None, **options):
        data = fit_scenarios.dataset() if data is None else data
        history = self.fit(model, data, **{"epochs": 2, "verbose": 0, **options})
        return {
            "history": history.history,
            "epochs": history.epoch,
            "params": history.params,
            "iterations": int(model.optimizer.iterations.numpy()),
            "weights": [float(np.sum(x)) for x in model.get_weights()],
        }


def outcome(scenario, side):
    """The result of a scenario, converted by JSON; or its error."""
    try:
        return json.loads(json.dumps(scenario(side), default=float))
    except Exception:
        return {"failed": traceback.format_exc()}


def main():
    stock = Side(contextlib.nullcontext, is_stock=True)
    ours = Side(keras_sync_replicas.make_strategy().scope, is_stock=False)
    said = outcome(fit_scenarios.every_batch_once, ours)
    names = json.loads(sys.argv[1])
    scenarios = fit_scenarios.SCENARIOS | fit_data.VALIDATED
    scenarios = {name: scenarios[name] for name in names}
    # Once it is installed, models outside the scope are refused.
    expected = {name: outcome(x, stock) for name, x in scenarios.items()}
    tfs.keras.install_fit()
    results = {
        name: {"expected": expected[name], "actual": outcome(x, ours)}
        for name, x in scenarios.items()
    }
    programs.report({**results, "before install_fit": said})


if __name__ == "__main__":
    main()
