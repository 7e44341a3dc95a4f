"""The v1 optimizers, each with its float64 twin: a table for tests of all of them."""

import adam_async_reference
import numpy as np
import rule_numbers
import rule_reference
import tensorflow as tf
import v1_models
from rule_numbers import FTRL_NUMBERS

import tf_syncrep as tfs

tf1 = tf.compat.v1

# TensorFlow's classes hold numbers in float32: it and those below are exact there.
RATE = 0.0625
ADAM_NUMBERS = {"beta1": 0.75, "beta2": 0.875, "epsilon": 2.0**-20}
STEPS = 5
TOLERANCES = {
    tf.float16: 4e-3,
    tf.bfloat16: 4e-2,
    tf.float32: 2e-5,
    tf.float64: 1e-12,
}


class Rule:
    """An optimizer that is a rule, and TensorFlow's of that name."""

    sparse_op = "Syncrep>{}SparseApplyRule"

    def __init__(self, name, rule, numbers, slots, **options):
        """Takes the class, the rule, its numbers but the rate, the class's options."""
        self._ours, self._theirs = getattr(tfs.train, name), getattr(tf1.train, name)
        self._rule, self._numbers = rule, numbers
        self.slots, self._options = slots, options

    def make(self, rate=RATE, **options):
        return self._ours(rate, **self._options, **options)

    def make_theirs(self, rate=RATE):
        return self._theirs(rate, **self._options)

    def start(self, value):
        """The twin's variable and slots."""
        slots = {name: np.full(value.shape, x) for name, x, _ in self.slots}
        return np.array(value, np.float64), slots

    def apply(self, state, grad, indices=None, rate=RATE):
        """The twin's variable and slots after an update."""
        numbers = {"lr": rate, **self._numbers}
        return rule_reference.apply(self._rule, *state, numbers, grad, indices)


class AdamAsync:
    """The optimizer with its options; see `Rule`.

    TensorFlow's Adam is the same for dense gradients alone.
    """

    sparse_op = "{}SparseApplyAdamAsync"
    slots = (
        ("m", 0.0, "AdamAsync"),
        ("v", 0.0, "AdamAsync_1"),
        ("beta1_power", ADAM_NUMBERS["beta1"], "AdamAsync_2"),
        ("beta2_power", ADAM_NUMBERS["beta2"], "AdamAsync_3"),
    )

    def __init__(self, use_nesterov=False, **rmsprop):
        self._options = {**ADAM_NUMBERS, "use_nesterov": use_nesterov}
        self._rmsprop = rmsprop

    def make(self, rate=RATE, **options):
        return tfs.train.AdamAsyncOptimizer(
            rate, **self._options, **self._rmsprop, **options
        )

    def make_theirs(self, rate=RATE):
        return tf1.train.AdamOptimizer(rate, **ADAM_NUMBERS)

    def start(self, value):
        beta1, beta2, _ = ADAM_NUMBERS.values()
        slots = adam_async_reference.initial_state(value, beta1, beta2)._asdict()
        return slots.pop("var"), slots

    def apply(self, state, grad, indices=None, rate=RATE):
        var, slots = state
        options = {**slots, "lr": rate, "grad": grad, **self._options}
        if indices is None:
            after = adam_async_reference.adam_async_dense(var, **options)
        else:
            after = adam_async_reference.adam_async_sparse(
                var, **options, **self._rmsprop, indices=indices
            )
        slots = after._asdict()
        return slots.pop("var"), slots


_MOMENTUM = {"momentum": 0.75}
_MOMENTUM_SLOTS = [("momentum", 0.0, "Momentum")]
_FTRL_SLOTS = [("accumulator", 0.25, "Ftrl"), ("linear", 0.0, "Ftrl_1")]
RULES = {
    "gradient_descent": Rule("GradientDescentOptimizer", "sgd", {}, []),
    "momentum": Rule(
        *("MomentumOptimizer", "gradient_momentum", _MOMENTUM, _MOMENTUM_SLOTS),
        **_MOMENTUM,
    ),
    "nesterov": Rule(
        *("MomentumOptimizer", "gradient_nesterov", _MOMENTUM, _MOMENTUM_SLOTS),
        **_MOMENTUM,
        use_nesterov=True,
    ),
    "adagrad": Rule(
        *("AdagradOptimizer", "adagrad", {"epsilon": 0.0}),
        [("accumulator", 0.25, "Adagrad")],
        initial_accumulator_value=0.25,
    ),
    "ftrl": Rule(
        *("FtrlOptimizer", "ftrl", {"lr_power": -0.5, **FTRL_NUMBERS}, _FTRL_SLOTS),
        initial_accumulator_value=0.25,
        **rule_numbers.ftrl_options(FTRL_NUMBERS),
    ),
    "ftrl_power": Rule(
        *("FtrlOptimizer", "ftrl"),
        {"lr_power": -0.25, "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0, "beta": 0.0},
        _FTRL_SLOTS,
        learning_rate_power=-0.25,
        initial_accumulator_value=0.25,
    ),
}
CASES = {"adam_async": AdamAsync(), **RULES}


def close(got, want, tolerance):
    got = np.asarray(got, np.float64)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def rate_of(step):
    """A learning rate that falls, so that it matters where a rule has it."""
    return RATE / (1 + step)


class Trainer:
    """A model of v1_models and its training, in the current graph."""

    def __init__(self, session, kind, dtype, make, parts=3):
        self.session = session
        self.model = v1_models.Model(kind, dtype, parts)
        self.rate = tf1.placeholder(tf.float64, [])
        self.optimizer = make(self.rate)
        self.train_op = self.optimizer.minimize(self.model.loss)
        self.variables = tf1.global_variables()

    def train(self, steps):
        for step in steps:
            feed = {**self.model.feed(step), self.rate: rate_of(step)}
            self.session.run(self.train_op, feed)

    def values(self):
        return {x.op.name: self.session.run(x) for x in self.variables}


def in_session(kind, dtype, make):
    """The values of all variables after training."""
    with tf.Graph().as_default(), tf1.Session() as session:
        trainer = Trainer(session, kind, dtype, make)
        session.run(tf1.global_variables_initializer())
        trainer.train(range(STEPS))
        return trainer.values()


def by_twin(case, kind, dtype, steps=STEPS, rate=rate_of):
    """The same by the twin, under the names that a checkpoint has."""
    parts = v1_models.part_slices(kind)
    table = v1_models.TABLE.astype(dtype.as_numpy_dtype)
    states = [case.start(table[part]) for part in parts]
    vector = case.start(v1_models.VECTOR.astype(dtype.as_numpy_dtype))
    for step in range(steps):
        rows, row_grads, vector_grad = v1_models.gradients(step)
        for i, part in enumerate(parts):
            inside = (rows >= part.start) & (rows < part.stop)
            states[i] = case.apply(
                states[i], row_grads[inside], rows[inside] - part.start, rate(step)
            )
        vector_grad = vector_grad.astype(dtype.as_numpy_dtype)
        vector = case.apply(vector, vector_grad, rate=rate(step))
    names = [f"table/part_{i}" for i in range(3)] if "part" in kind else ["table"]
    values = {}
    for name, (value, slots) in zip([*names, "vector"], [*states, vector], strict=True):
        values[name] = value
        for slot, _, suffix in case.slots:
            values[f"{name}/{suffix}"] = slots[slot]
    return values
