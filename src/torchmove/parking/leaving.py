"""A block on its way off a device, into its mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.internals.views import packed
from torchmove.parking.lanes import Piece
from torchmove.parking.mirrors import Mirror
from torchmove.parking.segments import SMALL_BYTES
from torchmove.surveying.children import Role
from torchmove.surveying.storages import Block


class Leaving(NamedTuple):
    """Where it is and what there is of it. The rest is worked out for those blocks of which somebody asks."""

    number: int  # in the load
    source: Tensor  # which looks elsewhere once the move is committed
    device: torch.device
    address: int  # of its storage, on the device
    nbytes: int  # that are reached
    role: Role
    first: int  # of the slots that look at it
    block: Block | None  # None: there is no other, and it sees all of it
    seen: Tensor | None  # the bytes of its storage, where torch does not look at memory by its address

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.first,) if self.block is None else self.block.slots

    @property
    def places(self) -> Sequence[tuple[int, int, int]]:
        """Where its bytes are in the storage, and where they go in the copy."""
        return [(0, self.nbytes, 0)] if self.block is None else packed(self.block.spans)[0]

    @property
    def is_whole(self) -> bool:
        return self.block is None or self.places[0][:2] == (0, self.nbytes)

    @property
    def group(self) -> int:
        """Gradients come and go, weights that are trained change with their optimizer's state, others do not. Each
        group has memory of its own on the device, so that what one does to it does not concern the others."""
        changes_with_state = self.role == "state" or self.source.requires_grad
        kind = 2 if self.role == "gradient" else 1 if changes_with_state else 0
        return 2 * kind + (self.nbytes <= SMALL_BYTES)

    def pieces(self, mirror: Mirror) -> Iterator[Piece]:
        for start, stop, begin in self.places:
            yield self.piece(mirror, start, stop, begin)

    def piece(self, mirror: Mirror, start: int, stop: int, begin: int) -> Piece:
        """From there to there in the storage, and where that begins in the mirror."""
        seen = None if self.seen is None else self.seen[start:stop]
        return Piece(
            self.device, self.address + start, mirror.span.extent, mirror.span.offset + begin, stop - start, seen
        )


make_leaving = partial(tuple.__new__, Leaving)  # like Leaving(...), from a tuple, and cheaper
Pair = tuple[Leaving, Mirror]
