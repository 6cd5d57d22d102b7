"""The reference mover: one block after the other."""

from __future__ import annotations

from torch import Tensor

from torchmove._blocks import copy_block
from torchmove._records import Advance, Load


class Plain:
    name = "plain"

    def copy(self, load: Load, advance: Advance) -> list[Tensor]:
        copies = []
        for each in load:
            copies.append(copy_block(each))
            advance(copies[-1].nbytes)
        return copies

    def finish(self) -> None:
        """Torch's own copies between kinds of memory are waited for as they are made."""

    def drop(self) -> None:
        """It keeps nothing."""
