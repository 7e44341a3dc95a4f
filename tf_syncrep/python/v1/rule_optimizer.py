"""The base class of v1 optimizers whose updates are ops of a rule."""

from collections.abc import Mapping
from typing import NamedTuple

from tf_syncrep.python.ops import rule_ops
from tf_syncrep.python.v1.base_optimizer import BaseOptimizer


class Slot(NamedTuple):
    """A slot of each variable.

    `suffix`: what follows the variable's name in a checkpoint of `Saver`; None for the
    optimizer's name.
    """

    name: str
    initial: float
    suffix: str | None = None


class RuleOptimizer(BaseOptimizer):
    """A v1 optimizer whose updates are those of a rule.

    A subclass keeps the rule's other numbers in its constructor, by `_keep`.
    """

    def __init__(
        self,
        rule: str,
        slots: Mapping[str, Slot],
        use_locking: bool,
        name: str,
        constants: Mapping[str, float] | None = None,
    ):
        """Makes an optimizer.

        `slots`: by the rule's name for each; their order fixes the names in a
        checkpoint. `constants`: those of the rule's numbers that are the same in each
        step.
        """
        super().__init__(use_locking, name)
        self._rule = rule
        self._rule_slots = dict(slots)
        self._constants = dict(constants or {})

    def _create_slots(self, var_list):
        for var in var_list:
            for slot in self._rule_slots.values():
                self._make_slot(var, slot.name, slot.initial, slot.suffix)

    def _prepare(self):
        super()._prepare()
        self._values.update(self._constants)

    def _operands(self, var):
        """Returns the inputs of all ops that come before the gradient."""
        slots = {
            name: self.get_slot(var, slot.name)
            for name, slot in self._rule_slots.items()
        }
        return [self._rule, var, slots, self._hyper_parameters(var)]

    def _apply_dense(self, grad, var):
        return rule_ops.apply_rule(*self._operands(var), grad)

    def _apply_sparse(self, grad, var):
        return rule_ops.sparse_apply_rule(
            *self._operands(var), grad.values, grad.indices, self._use_locking
        )

    def _resource_apply_dense(self, grad, handle):
        return rule_ops.resource_apply_rule(*self._operands(handle), grad)

    def _resource_apply_sparse(self, grad, handle, indices):
        return rule_ops.resource_sparse_apply_rule(
            *self._operands(handle), grad, indices, self._use_locking
        )
