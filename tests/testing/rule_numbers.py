"""The numbers with which tests of ops apply each rule."""

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
