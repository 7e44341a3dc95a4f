"""A value that was read from a variable before an update does not change."""

import adam_async_steps as steps
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("device")

INDICES = np.array([1, 4, 1])

kinds = pytest.mark.parametrize(
    ("indices", "options"),
    [
        (None, {}),
        (INDICES, {}),
        (INDICES, {"use_locking": True}),
        (INDICES, {"apply_sparse_rmsprop": True}),
    ],
    ids=["dense", "sparse", "sparse_locking", "rmsprop"],
)


def gradient(indices):
    return tf.ones([6 if indices is None else len(indices), 3])


@kinds
@pytest.mark.parametrize("first_kind", ["dense", "sparse"])
def test_reads_of_variable_and_slots_do_not_change_under_the_reader(
    indices, options, first_kind
):
    """This also holds if the update before was of the other kind."""
    variables = steps.make_variables(steps.random_state(1, [6, 3], tf.float32))
    first_indices = None if first_kind == "dense" else INDICES
    steps.apply(variables, gradient(first_indices), first_indices)

    tensors = [variable.read_value() for variable in variables]
    views = [variable.numpy() for variable in variables]
    before = [view.copy() for view in views]
    steps.apply(variables, gradient(indices), indices, **options)

    for tensor, view, copy in zip(tensors, views, before, strict=True):
        np.testing.assert_array_equal(tensor, copy)
        np.testing.assert_array_equal(view, copy)
    for variable, copy in zip(variables[:3], before[:3], strict=True):
        assert np.any(variable.numpy() != copy)


@kinds
def test_assigning_and_updating_take_turns(indices, options):
    """assign, assign_add and scatter_sub work on a variable that ops have updated."""
    state = steps.random_state(3, [6, 3], tf.float32)
    variables = steps.make_variables(state)
    for _ in range(2):
        steps.apply(variables, gradient(indices), indices, **options)
        for variable, value in zip(variables, state, strict=True):
            variable.assign(value)
        variables[0].assign_add(tf.ones([6, 3]))
        variables[0].scatter_sub(tf.IndexedSlices(tf.ones([1, 3]), [2]))

        shifted = state._replace(var=state.var + 1)
        shifted.var[2] -= 1
        np.testing.assert_allclose(variables[0], shifted.var, rtol=1e-6)

    steps.apply(variables, gradient(indices), indices, **options)
    expected = steps.expected_step(shifted, gradient(indices), indices, **options)
    steps.assert_close(steps.values(variables), expected)
