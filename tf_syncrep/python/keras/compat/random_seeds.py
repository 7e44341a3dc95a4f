"""Seeds of random ops in a graph that has the same step several times."""

import contextlib
from collections.abc import Iterator

# Private: no public function says which seed an op gets that has a seed of its own
# (checked with TensorFlow 2.15.1 and 2.22.0rc0).
from tensorflow.python.framework import random_seed  # pyright: ignore

from tf_syncrep.python.keras.compat.replaced import replaced

_LARGEST_SEED = 2**31 - 1
# This is far from the numbers that people use as seeds.
_STRIDE = 100_003


@contextlib.contextmanager
def seeds_of_copy(number: int) -> Iterator[None]:
    """Makes random ops traced inside draw other numbers than those of other copies.

    Each op in a graph draws its own sequence, which depends on its seed. So all copies
    of an op with a seed would draw the same numbers.

    `number`: the number of the copy; 0 leaves seeds as they are.
    """
    stock = random_seed.get_seed

    def get_seed(op_seed):
        if op_seed is None:
            return stock(None)
        return stock((int(op_seed) + number * _STRIDE) % _LARGEST_SEED)

    if not number:
        yield
        return
    with replaced(random_seed, "get_seed", get_seed):
        yield
