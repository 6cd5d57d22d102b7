"""Small blocks travel in bundles: one behind the other in a slot, over the link together, then a storage for each.

What takes time here is Python, not the link: everything is done for a whole bundle at once, and by one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove._storage import apart


class Bundle(NamedTuple):
    """Contiguous tensors of one dtype; `keys` tell them apart."""

    tensors: list[Tensor]
    keys: list[int]

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def counts(self) -> list[int]:
        return list(map(Tensor.numel, self.tensors))

    def gather(self, out: Tensor) -> None:
        torch.cat([tensor if tensor.dim() == 1 else tensor.view(-1) for tensor in self.tensors], out=out)

    def spread(self, slab: Tensor) -> list[Tensor]:
        """Copies like the tensors, each with a storage of its own, from a slab into which such were gathered."""
        parts = zip(apart(slab, self.counts), self.tensors, strict=True)
        return [part if tensor.dim() == 1 else part.view(tensor.shape) for part, tensor in parts]


def bundled(tensors: Sequence[Tensor], keys: Sequence[int], most_bytes: int) -> Iterator[Bundle]:
    """Tensors of one dtype, as many in a bundle as fit."""
    some, size = Bundle([], []), 0
    for tensor, key, nbytes in zip(tensors, keys, [tensor.nbytes for tensor in tensors], strict=True):
        if size + nbytes > most_bytes and some.tensors:
            yield some
            some, size = Bundle([], []), 0
        some.tensors.append(tensor)
        some.keys.append(key)
        size += nbytes
    if some.tensors:
        yield some


class Lane:
    """Slots taken in turn; one is used again when what it held has crossed the link."""

    def __init__(self, slots: Sequence[Tensor], stream: torch.cuda.Stream) -> None:
        self.slots, self.stream, self.turn = slots, stream, 0
        self.events = [torch.cuda.Event() for _ in slots]  # type: ignore[no-untyped-call]

    def next(self, bundle: Bundle) -> tuple[Tensor, torch.cuda.Event]:
        number, self.turn = self.turn % len(self.slots), self.turn + 1
        self.events[number].synchronize()
        count = sum(bundle.counts)
        slot = self.slots[number][: count * bundle.dtype.itemsize].view(bundle.dtype)
        return slot, self.events[number]


def to_device(bundle: Bundle, lane: Lane) -> list[Tensor]:
    slot, event = lane.next(bundle)
    bundle.gather(slot)
    slab = slot.to(lane.stream.device, non_blocking=True)
    event.record(lane.stream)
    return bundle.spread(slab)


def to_host(bundle: Bundle, lane: Lane) -> list[Tensor]:
    slot, event = lane.next(bundle)
    slab = torch.empty_like(slot, device=lane.stream.device)
    bundle.gather(slab)
    slot.copy_(slab, non_blocking=True)
    event.record(lane.stream)
    event.synchronize()
    return bundle.spread(slot)
