"""How often a block was written to, as far as torch counts: the quick question, before the fingerprint is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from torchmove.surveying.inventory import Inventory

Versions = tuple[int | None, ...]


class Counters:
    """What is written through a tensor made of tensors (a shard, say), torch counts there and not at its parts."""

    def __init__(self, inventory: Inventory) -> None:
        self.tensors = inventory.slots.tensors
        self.around = {id(part): shell.tensor for shell in inventory.shells for part in shell.parts}

    def of(self, slots: Sequence[int]) -> Versions:
        """Of the tensors that look at a block; None for what is not counted."""
        tensors: Sequence[Tensor] = [self.tensors[slot] for slot in slots]
        if self.around:
            tensors = [each for tensor in tensors for each in self._with_shells(tensor)]
        return tuple([None if tensor.is_inference() else tensor._version for tensor in tensors])

    def _with_shells(self, tensor: Tensor) -> Iterator[Tensor]:
        found: Tensor | None = tensor
        while found is not None:
            yield found
            found = self.around.get(id(found))
