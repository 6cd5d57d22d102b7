"""The reference mover: one block after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchmove._blocks import copy_block
from torchmove._records import Advance, Cargo


class Plain:
    name = "plain"

    def copy(self, cargo: Sequence[Cargo], advance: Advance) -> list[Tensor]:
        copies = []
        for each in cargo:
            copies.append(copy_block(each))
            advance(copies[-1].nbytes)
        return copies
