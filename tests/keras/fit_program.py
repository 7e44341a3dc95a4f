"""Does scenarios by `Model.fit`, and as a coordinator by `tfs.keras.fit`.

Argument: their names.
"""

import contextlib
import json
import sys
import traceback

import fit_scenarios
import programs
import tensorflow as tf

import tf_syncrep as tfs


def outcome(scenario, side):
    """What a scenario returned, through JSON; or what it failed with."""
    try:
        return json.loads(json.dumps(scenario(side), default=float))
    except Exception:
        return {"failed": traceback.format_exc()}


def main():
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    stock, ours = (
        fit_scenarios.Side(owner.fit, owner.evaluate, owner.predict, scope)
        for owner, scope in (
            (tf.keras.Model, contextlib.nullcontext),
            (tfs.keras, strategy.scope),
        )
    )
    programs.report(
        {
            name: {
                "expected": outcome(scenario, stock),
                "actual": outcome(scenario, ours),
            }
            for name, scenario in fit_scenarios.SCENARIOS.items()
            if name in json.loads(sys.argv[1])
        }
    )


if __name__ == "__main__":
    main()
