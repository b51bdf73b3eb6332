"""``kt_core.Module``: keep the module as it is, and only place its parameters.

It stands behind the operators of KTransformers whose work transformers' own modules do by now: MoE
blocks call whatever experts were put into them, rotary embeddings rebuild their buffers, attention
keeps its cache.
"""

from __future__ import annotations

from torch import nn

from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext


class Module(Operator):
    """Leaves the original in its place; rules for its children still apply."""

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return the original."""
        return original

    def load(self, weights: ModuleWeights) -> None:
        """Never called: the original's parameters are loaded like any other module's."""
