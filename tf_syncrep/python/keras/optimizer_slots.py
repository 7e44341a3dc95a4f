"""Finds the slots of model variables in any optimizer.

Optimizers of this package tell which slots they have. Those of Keras do not, but they
name a slot after its variable (`add_variable_from_reference`, checked with Keras 3.10
to 3.15, tf_keras and Keras 2.15): `<path>_<slot>` in Keras 3, with underscores for the
slashes of the path, and `<optimizer>/<slot>/<name>` in Keras 2. So it does with the
sums of gradients that any optimizer has with `gradient_accumulation_steps` of Keras 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_syncrep.python.keras import compat
from tf_syncrep.python.keras.parts import members_of

# The slot with the sums of gradients, which the base class of all optimizers makes.
_SUMS = "gradient_accumulator"


def slots_by_variable(
    optimizer: Any, variables: Sequence[Any]
) -> dict[int, dict[str, Any]]:
    """Finds the slots of model variables.

    `variables`: model variables, as Keras has them. Returns the slots of each variable
    by name, by the `id` of its `tf.Variable`. The slots are `tf.Variable`s as well.
    """
    found: dict[int, dict[str, Any]] = {id(compat.native(v)): {} for v in variables}
    for innermost in innermost_of(optimizer):
        for variable, slots in _slots_of(innermost, variables).items():
            found[variable] |= slots
    return found


def innermost_of(optimizer: Any) -> list[Any]:
    """Finds the optimizers that make the updates."""
    members = members_of(optimizer)
    return [x for member in members for x in innermost_of(member)] or [optimizer]


def trainer_of(optimizer: Any, variable: Any) -> Any:
    """Returns the optimizer that updates a variable."""
    is_several = hasattr(optimizer, "optimizer_of")
    return optimizer.optimizer_of(variable) if is_several else optimizer


def _slots_of(optimizer, variables):
    found: dict[int, dict[str, Any]] = {id(compat.native(v)): {} for v in variables}
    tells_slots = hasattr(optimizer, "has_slots_of")
    if tells_slots:
        variables = [x for x in variables if optimizer.has_slots_of(x)]
        for variable in variables:
            found[id(compat.native(variable))] = {
                name: compat.native(slot)
                for name, slot in optimizer.slots(variable).items()
            }
    # The longest names come first, so that a slot whose name begins with that of the
    # variable "a_b" is not taken for one of the variable "a".
    references = sorted(
        ((_reference(v), compat.native(v)) for v in variables), key=lambda x: -len(x[0])
    )
    for slot in variables_of(optimizer):
        own = compat.native(slot)
        for reference, variable in references:
            kind = _kind(slot, reference)
            if tells_slots and kind != _SUMS:
                continue
            of_variable = found[id(variable)]
            # If two variables have the same name, the first one gets the first slot.
            if kind and own.shape == variable.shape and kind not in of_variable:
                of_variable[kind] = own
                break
    return found


def variables_of(optimizer: Any) -> Sequence[Any]:
    """Returns all variables of an optimizer.

    In older optimizers of Keras 2.15, `variables` is a method.
    """
    variables = optimizer.variables
    return variables if isinstance(variables, (list, tuple)) else variables()


def are_rows(slot: Any, variable: Any) -> bool:
    """Returns whether a slot has values for each row of its variable.

    Its shape is then the variable's, or has one number for each row: the first
    dimension of the variable, and 1 for every other.
    """
    if slot.shape == variable.shape:
        return True
    rank = len(variable.shape)
    return rank > 1 and list(slot.shape) == [variable.shape[0], *([1] * (rank - 1))]


def _reference(variable: Any) -> str:
    if compat.IS_KERAS_3:
        return getattr(variable, "path", variable.name).replace("/", "_")
    return variable.name.split(":")[0]


def _kind(slot: Any, reference: str) -> str | None:
    """Returns the kind of a slot, if it may belong to the variable of that name."""
    if compat.IS_KERAS_3:
        name = slot.name
        return name[len(reference) + 1 :] if name.startswith(reference + "_") else None
    name = slot.name.split(":")[0]
    if not name.endswith("/" + reference):
        return None
    return name[: -len(reference) - 1].split("/")[-1]
