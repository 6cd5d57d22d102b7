"""What the arena does not hold goes as it would in any move."""

from __future__ import annotations

from torch import Tensor

from torchmove.moving.batches import Advance, Load
from torchmove.moving.movers import choose_mover


def copy_rest(load: Load, copies: list[Tensor | None], advance: Advance) -> int:
    """Copy all of a load that has no copy yet; how many bytes that were."""
    rest = [index for index, copy in enumerate(copies) if copy is None]
    if not rest:
        return 0
    part = load.some(rest)
    for index, copy in zip(rest, choose_mover("auto", part.moves).mover.copy(part, advance), strict=True):
        copies[index] = copy
    return sum(part.moves.nbytes)
