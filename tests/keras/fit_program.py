"""Does all scenarios by `Model.fit` and as a coordinator by `tfs.keras.fit`."""

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
    stock = fit_scenarios.Side(tf.keras.Model.fit, tf.keras.Model.evaluate)
    ours = fit_scenarios.Side(tfs.keras.fit, tfs.keras.evaluate, strategy.scope)
    names = sys.argv[1:] and json.loads(sys.argv[1])
    programs.report(
        {
            name: {
                "expected": outcome(scenario, stock),
                "actual": outcome(scenario, ours),
            }
            for name, scenario in fit_scenarios.SCENARIOS.items()
            if not names or name in names
        }
    )


if __name__ == "__main__":
    main()
