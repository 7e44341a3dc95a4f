"""Trains synchronously on one batch, by each inner optimizer; reports the weights.

Arguments: the number of workers, and the number of updates of each optimizer.
"""

import json
import sys

import keras_sync_replicas as helpers
import keras_variants
import programs

import tf_syncrep as tfs


def train(strategy, make_inner, workers, updates):
    with strategy.scope():
        model = keras_variants.small_model()
        optimizer = tfs.keras.SyncReplicas(make_inner(), workers, workers, spares=False)
        model.compile(optimizer, loss="mse")
    tfs.keras.fit(
        model,
        helpers.one_batch().repeat(),
        steps_per_epoch=workers * updates,
        verbose=0,
    )
    return {
        "weights": [x.tolist() for x in model.get_weights()],
        "iterations": helpers.iterations_of(optimizer),
        "stats": optimizer.stats(),
    }


def main():
    workers, updates = map(json.loads, sys.argv[1:])
    strategy = helpers.make_strategy()
    programs.report(
        {
            name: train(strategy, make_inner, workers, updates)
            for name, make_inner in helpers.OPTIMIZERS.items()
        }
    )


if __name__ == "__main__":
    main()
