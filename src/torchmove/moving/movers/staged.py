"""The fast way between host memory and a CUDA device: through the ring of page-locked slots.

Large blocks go in pieces, many at a time. Small ones go in bundles: together over the link, then apart. What is neither
(another kind of device on one side, a tensor that shows no storage) goes as the reference mover does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.internals.host_memory import ask_for_huge_pages
from torchmove.internals.views import bytes_of, packed
from torchmove.moving.batches import Advance, CopyBatch, StorageCopy
from torchmove.moving.movers.plain import copy_storage
from torchmove.moving.movers.ring import NoRing, Ring, has_ring, shared_ring
from torchmove.moving.movers.traffic import Bundle, Bundles, Piece, Pieces, bundled
from torchmove.planning.plan import Moves

_SMALL_BYTES = 1 << 20
_BATCH = 4096  # small blocks that are looked at before anything is asked for the first of them


class _Worth(NamedTuple):
    """From how many bytes, or how many blocks, staging is the faster way."""

    nbytes: int
    storages: int


# Making the ring takes as long as moving so much without it: to the device, and, slower, into fresh host memory.
_FIRST_UP = _Worth(256 << 20, 5000)
_FIRST_DOWN = _Worth(64 << 20, 5000)
_LATER = _Worth(16 << 20, 100)  # where `mover="staged"` catches up with `mover="plain"`, once there is a ring


class Staged:
    name = "staged"

    def copy(self, load: CopyBatch, advance: Advance) -> list[Tensor]:
        copies: list[Tensor | None] = [None] * len(load)
        for (home, target), indices in load.moves.ways.items():
            if _is_staged(home, target):
                _Way(home, target, load, copies, advance).go(indices)
            else:
                for index in indices:
                    copies[index] = copy_storage(load[index])
                    advance(load.moves.nbytes[index])
        return [copy for copy in copies if copy is not None]

    def finish(self) -> None:
        """The traffic has ended before."""

    def drop(self) -> None:
        """It keeps nothing."""


def _is_staged(home: torch.device, target: torch.device) -> bool:
    return {home.type, target.type} == {"cpu", "cuda"}


def devices(moves: Moves) -> list[torch.device]:
    """The CUDA devices between which and the CPU something moves."""
    staged = [way for way in moves.ways if _is_staged(*way)]
    return [device for way in staged for device in way if device.type != "cpu"]


def unfit(moves: Moves) -> str:
    """Why these moves cannot be staged, if so."""
    if not moves:
        return ""
    found = devices(moves)
    if not found:
        return "nothing moves between cpu and cuda"
    try:
        shared_ring(found[0])
    except NoRing as error:
        return str(error)
    return ""


def worth(moves: Moves) -> bool:
    """Would staging be the faster way?"""
    is_up = any(target.type == "cuda" for _, target in moves.ways)
    least = _LATER if has_ring() else _FIRST_UP if is_up else _FIRST_DOWN
    return len(moves) >= least.storages or sum(moves.nbytes) >= least.nbytes


class _Way:
    """All that goes from one device to one other."""

    def __init__(
        self,
        home: torch.device,
        target: torch.device,
        load: CopyBatch,
        copies: list[Tensor | None],
        advance: Advance,
    ) -> None:
        self.is_up = target.type == "cuda"
        self.target, self.load, self.copies, self.advance = target, load, copies, advance
        device = target if self.is_up else home
        self.ring: Ring = shared_ring(device)
        self.caller = torch.cuda.current_stream(device)
        self.stream = self.ring.stream(device)
        # All that was written to the source, on any stream, and all that used the memory that is free now.
        torch.cuda.synchronize(device)

    def go(self, indices: Sequence[int]) -> None:
        nbytes = self.load.moves.nbytes
        small = [index for index in indices if 0 < nbytes[index] <= _SMALL_BYTES]
        scattered = {index for index, storage in self.load.moves.special() if len(storage.spans) != 1}
        if scattered:
            small = [index for index in small if index not in scattered]
        large: Sequence[int] = sorted({*indices}.difference(small)) if len(small) < len(indices) else ()
        # All memory first: an allocation while copies are under way waits for them.
        for index in large:
            self.copies[index] = self.room_for(self.load[index])
        if large:
            with self.ring.road(self.stream, self.advance) as road:
                self.carry(Pieces(road, self.pieces(large)))
        if small:
            self.carry_bundles(small)

    def carry(self, traffic: Pieces | Bundles) -> None:
        if self.is_up:
            traffic.to_device()
        else:
            traffic.to_host()

    # ------------------------------------------------------------ small blocks

    def carry_bundles(self, indices: Sequence[int]) -> None:
        batches = (indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH))
        bundles = chain.from_iterable(map(self.bundles, batches))
        # On the caller's stream: memory of another one is of no use to it later.
        with self.ring.road(self.caller, self.advance) as road:
            self.carry(Bundles(road, bundles, self.arrived))

    def bundles(self, indices: Sequence[int]) -> Iterator[Bundle]:
        load, firsts, first = self.load, self.load.moves.firsts, indices[0]
        dense = load.dense[first : indices[-1] + 1]
        dtypes, shapes = load.moves.storages.metadata.dtypes, load.moves.storages.metadata.shapes
        # Not self.load: Python 3.11 makes a list in a function of its own. An error keeps that, and it would keep self.
        tensors = [load.sources[index] if dense[index - first] else _reached(load, index) for index in indices]
        kinds = [
            (dtypes[firsts[index]], shapes[firsts[index]]) if dense[index - first] else (tensor.dtype, tensor.shape)
            for index, tensor in zip(indices, tensors, strict=True)
        ]
        return bundled(tensors, kinds, indices, self.ring.slot_bytes)

    def arrived(self, indices: Sequence[int], copies: Sequence[Tensor]) -> None:
        for index, copy in zip(indices, copies, strict=True):
            self.copies[index] = copy

    # ------------------------------------------------------------ large blocks

    def pieces(self, indices: Sequence[int]) -> Iterator[Piece]:
        for index in indices:
            source, storage, _, _ = self.load[index]
            copy = self.copies[index]
            assert copy is not None
            for start, stop, begin in packed(storage.spans)[0] if not storage.opaque else ():
                yield from self.cut(bytes_of(source, start, stop), bytes_of(copy, begin, begin + stop - start))

    def room_for(self, cargo: StorageCopy) -> Tensor:
        if cargo.storage.opaque:
            return copy_storage(cargo)
        dtype = cargo.source.dtype if cargo.dense else torch.uint8
        shape = cargo.source.shape if cargo.dense else (packed(cargo.storage.spans)[1],)
        copy = torch.empty(shape, dtype=dtype, device=self.target)
        if not self.is_up:
            ask_for_huge_pages(copy)
        return copy

    def cut(self, source: Tensor, copy: Tensor) -> Iterator[Piece]:
        host, device = (source, copy) if self.is_up else (copy, source)
        if self.is_up and host.is_pinned():
            device.copy_(host, non_blocking=True)
            self.advance(host.nbytes)
            return
        address = host.data_ptr()
        for part in device.split(self.ring.slot_bytes):  # type: ignore[no-untyped-call]
            yield Piece(host, address, part, part.nbytes)
            address += part.nbytes


def _reached(load: CopyBatch, index: int) -> Tensor:
    source, storage, _, _ = load[index]
    return bytes_of(source, *storage.spans[0])
