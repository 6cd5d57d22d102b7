"""Small blocks travel in bundles: one behind the other in a slot, over the link together, then a storage for each.

What takes time here is Python, not the link: everything is done for a whole bundle at once, and by one thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove._storage import apart


class Bundle(NamedTuple):
    """Contiguous tensors of one dtype; `keys` tell them apart."""

    tensors: list[Tensor]
    keys: list[int]
    nbytes: int

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    def gather(self, out: Tensor) -> None:
        torch.cat([tensor if tensor.dim() == 1 else tensor.view(-1) for tensor in self.tensors], out=out)

    def spread(self, slab: Tensor) -> Sequence[Tensor]:
        """Copies like the tensors, each with a storage of its own, from a slab into which such were gathered."""
        return apart(slab, self.tensors)


def bundled(tensors: list[Tensor], keys: list[int], most_bytes: int) -> Iterator[Bundle]:
    """Tensors of one dtype, as many in a bundle as fit."""
    ends = list(accumulate(map(_nbytes, tensors)))
    start, before = 0, 0
    while start < len(tensors):
        stop = max(start + 1, bisect_right(ends, before + most_bytes))
        yield Bundle(tensors[start:stop], keys[start:stop], ends[stop - 1] - before)
        start, before = stop, ends[stop - 1]


_nbytes = attrgetter("nbytes")


class Lane:
    """Slots taken in turn; one is used again when what it held has crossed the link."""

    def __init__(self, slots: Sequence[Tensor], stream: torch.cuda.Stream) -> None:
        self.slots, self.stream, self.turn = slots, stream, 0
        self.events = [torch.cuda.Event() for _ in slots]  # type: ignore[no-untyped-call]

    def next(self, bundle: Bundle) -> tuple[Tensor, torch.cuda.Event]:
        number, self.turn = self.turn % len(self.slots), self.turn + 1
        self.events[number].synchronize()
        slot = self.slots[number][: bundle.nbytes].view(bundle.dtype)
        return slot, self.events[number]


def to_device(bundle: Bundle, lane: Lane) -> Sequence[Tensor]:
    slot, event = lane.next(bundle)
    bundle.gather(slot)
    slab = slot.to(lane.stream.device, non_blocking=True)
    event.record(lane.stream)
    return bundle.spread(slab)


def to_host(bundle: Bundle, lane: Lane) -> Sequence[Tensor]:
    slot, event = lane.next(bundle)
    slab = torch.empty_like(slot, device=lane.stream.device)
    bundle.gather(slab)
    slot.copy_(slab, non_blocking=True)
    event.record(lane.stream)
    event.synchronize()
    return bundle.spread(slot)
