"""Does scenarios by `Model.fit`, also as a coordinator, after `install_fit`.

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
        fit_scenarios.Side(
            # Methods of the class as they are when they are called.
            *(
                lambda *args, _name=name, **kwargs: getattr(tf.keras.Model, _name)(
                    *args, **kwargs
                )
                for name in ("fit", "evaluate", "predict")
            ),
            scope,
        )
        for scope in (contextlib.nullcontext, strategy.scope)
    )
    names = json.loads(sys.argv[1])
    said = outcome(fit_scenarios.every_batch_once, ours)
    tfs.keras.install_fit()
    programs.report(
        {
            name: {
                "expected": outcome(scenario, stock),
                "actual": outcome(scenario, ours),
            }
            for name, scenario in fit_scenarios.SCENARIOS.items()
            if name in names
        }
        | {"before install_fit": said}
    )


if __name__ == "__main__":
    main()
