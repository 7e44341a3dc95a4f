"""The numbers with which tests apply each rule, and their names in optimizers."""

NUMBERS = {
    "adagrad": {"lr": 0.05, "epsilon": 1e-3},
    "ftrl": {
        "lr": 0.5,
        "lr_power": -0.5,
        "l1": 0.1,
        "l2": 0.01,
        "l2_shrinkage": 0.001,
        "beta": 0.25,
    },
    "gradient_momentum": {"lr": 0.05, "momentum": 0.75},
    "gradient_nesterov": {"lr": 0.05, "momentum": 0.75},
    "momentum": {"lr": 0.05, "momentum": 0.75},
    "nesterov": {"lr": 0.05, "momentum": 0.75},
    "rowwise_adagrad": {"lr": 0.05, "epsilon": 1e-3},
    "sgd": {"lr": 0.05},
}
FTRL_ARGUMENTS = {
    "lr_power": "learning_rate_power",
    "l1": "l1_regularization_strength",
    "l2": "l2_regularization_strength",
    "l2_shrinkage": "l2_shrinkage_regularization_strength",
    "beta": "beta",
}
# All parts of FTRL's rule count with these.
FTRL_NUMBERS = {"l1": 0.125, "l2": 0.25, "l2_shrinkage": 0.0625, "beta": 0.5}


def ftrl_options(numbers):
    """The arguments of an optimizer for these numbers."""
    return {FTRL_ARGUMENTS[name]: value for name, value in numbers.items()}
