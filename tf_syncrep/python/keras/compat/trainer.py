"""What a loop around a Keras 3 model has to know that only private names tell."""

from collections.abc import Iterator, Mapping
from typing import Any


def initial_epoch(model: Any) -> int | None:
    """The epoch that a callback has set training back to, or None.

    Private: `BackupAndRestore` leaves it there for `Model.fit`, and nowhere else.
    """
    return getattr(model, "_initial_epoch", None)


def layers_of(model: Any) -> list[Any]:
    """A model and all layers in it, those in attributes of other layers included.

    Private: the public `layers` are those of the uppermost level.
    """
    return list(model._flatten_layers())


def is_loss_built(model: Any) -> bool:
    """Whether the losses of all outputs have the metrics that report them.

    Private: they are made at the first call, and nothing public tells.
    """
    loss = getattr(model, "_compile_loss", None)
    return loss is None or bool(loss.built)


def seed_generators(model: Any) -> Iterator[Any]:
    """The generators of seeds of all layers, Dropout's for one.

    Private: layers show only the variables in them.
    """
    for layer in layers_of(model):
        yield from getattr(layer, "_seed_generators", [])


def in_order_of_metrics(model: Any, logs: Mapping[str, Any]) -> Any:
    """Results by name as `Model.evaluate` lists them; one alone without a list.

    Private: with several outputs the order does not follow from public names.
    """
    return model._flatten_metrics_in_order(logs)
