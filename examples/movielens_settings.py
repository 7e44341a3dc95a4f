"""How each of the models is trained."""

from __future__ import annotations

import dataclasses

# The film that is left out is the last one of each user, or any one.
LAST, ANY = "last", "any"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a model is made and trained.

    Attributes:
        epochs: how often all examples are seen.
        batch_size: examples of an update.
        learning_rate: the rate at the beginning; it goes down to nothing, along a
            cosine.
        width: elements of a vector.
        shrink: strength of `movielens_models.Shrink`.
        seed: the seed of weights, orders, negatives, and the choice of tested ratings.
        left_out: which film of each user is told from others: `LAST` or `ANY`.
        growing: whether tables grow with the ids that come, instead of having a row
            for each id that there is.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    width: int
    shrink: float
    seed: int = 0
    left_out: str = LAST
    growing: bool = False


# By the name of the model: what suits it.
SETTINGS = {
    "neumf": Settings(8, 4096, 4e-3, width=32, shrink=1e-3),
    "mf": Settings(15, 512, 2e-3, width=64, shrink=0.1),
    "dcn": Settings(6, 512, 2e-3, width=16, shrink=1e-3),
}
