"""Evaluates a checkpoint under ParameterServerStrategy. Argument, JSON: its folder."""

import json
import sys

import evaluator_models as models
import keras_variants
import programs
import tensorflow as tf

import tf_syncrep as tfs


def main(folder):
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    with strategy.scope():
        model = models.make(built=False)
    evaluator = tfs.keras.SidecarEvaluator(
        model, models.batch(100), folder, max_evaluations=1
    )
    (found,) = evaluator.start()
    tables = [x for x in model.trainable_variables if x.shape[-1] == models.WIDTH]
    return {
        "metrics": found.metrics,
        "devices": [keras_variants.native(table).device for table in tables],
    }


if __name__ == "__main__":
    programs.report(main(json.loads(sys.argv[1])))
