"""The staged mover: fast copies between CPU and CUDA, through a ring of page-locked buffers.

Large storages are copied in pieces, many at a time. Small ones are bundled into one copy over the link. All others
(another type of device, a tensor without a storage) are copied as the plain mover does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.internals.host_memory import ask_for_huge_pages
from torchmove.internals.storages import bytes_of, packed
from torchmove.moving.movers.copies import Advance, CopyBatch, StorageCopy, copy_storage
from torchmove.moving.movers.ring import NoRing, Ring, has_ring, shared_ring
from torchmove.moving.movers.traffic import Bundle, Bundles, Piece, Pieces, bundled
from torchmove.planning.plan import Moves

NOT_CPU_CUDA = "staging applies only to CPU-CUDA"

_SMALL_BYTES = 1 << 20
_BATCH = 4096  # small storages that are examined before the first of them is copied


class _Worth(NamedTuple):
    """From how many bytes, or how many storages, staging is faster."""

    nbytes: int
    storages: int


# Creating the ring takes as long as copying this much without it.
_FIRST_TO_GPU = _Worth(256 << 20, 5000)
_FIRST_TO_HOST = _Worth(64 << 20, 5000)
_LATER = _Worth(16 << 20, 100)  # where `mover="staged"` equals `mover="plain"`, once there is a ring


class Staged:
    """Copies between CPU and CUDA through page-locked buffers."""

    name = "staged"

    def copy(self, batch: CopyBatch, advance: Advance) -> list[Tensor]:
        copies: list[Tensor | None] = [None] * len(batch)
        for (origin, target), indices in batch.moves.ways.items():
            converted = [index for index in indices if batch.moves.firsts[index] in batch.moves.conversions]
            if _is_staged(origin, target):
                _Direction(origin, target, batch, copies, advance).copy(
                    sorted({*indices}.difference(converted)) if converted else indices
                )
            else:
                converted = list(indices)
            for index in converted:
                copies[index] = copy = copy_storage(batch[index])
                advance(copy.nbytes)
        return [copy for copy in copies if copy is not None]

    def finish(self) -> None:
        """Nothing to wait for: `copy` waits for its copies."""

    def drop(self) -> None:
        """Nothing to release."""


def _is_staged(origin: torch.device, target: torch.device) -> bool:
    return {origin.type, target.type} == {"cpu", "cuda"}


def devices(moves: Moves) -> list[torch.device]:
    """The CUDA devices that exchange storages with the CPU."""
    staged = [way for way in moves.ways if _is_staged(*way)]
    return [device for way in staged for device in way if device.type != "cpu"]


def why_not(moves: Moves) -> str:
    """Why these moves cannot be staged; empty if they can."""
    if not moves:
        return ""
    found = devices(moves)
    if not found:
        return NOT_CPU_CUDA
    try:
        shared_ring(found[0])
    except NoRing as error:
        return str(error)
    return ""


def is_faster(moves: Moves) -> bool:
    """Whether staging is faster for these moves."""
    to_gpu = any(target.type == "cuda" for _, target in moves.ways)
    least = _LATER if has_ring() else _FIRST_TO_GPU if to_gpu else _FIRST_TO_HOST
    return len(moves) >= least.storages or sum(moves.nbytes) >= least.nbytes


class _Direction:
    """All copies from one device to another."""

    def __init__(
        self,
        origin: torch.device,
        target: torch.device,
        batch: CopyBatch,
        copies: list[Tensor | None],
        advance: Advance,
    ) -> None:
        self.to_gpu = target.type == "cuda"
        self.target, self.batch, self.copies, self.advance = target, batch, copies, advance
        device = target if self.to_gpu else origin
        self.ring: Ring = shared_ring(device)
        self.caller = torch.cuda.current_stream(device)
        self.stream = self.ring.stream(device)
        # Wait for writes to the source on any stream, and for all work that used memory that is free now.
        torch.cuda.synchronize(device)

    def copy(self, indices: Sequence[int]) -> None:
        nbytes = self.batch.moves.nbytes
        small = [index for index in indices if 0 < nbytes[index] <= _SMALL_BYTES]
        scattered = {index for index, storage in self.batch.moves.special() if len(storage.spans) != 1}
        if scattered:
            small = [index for index in small if index not in scattered]
        large: Sequence[int] = sorted({*indices}.difference(small)) if len(small) < len(indices) else ()
        # Allocate all memory first: an allocation during the copies would wait for them.
        for index in large:
            self.copies[index] = self.empty_copy(self.batch[index])
        if large:
            with self.ring.channel(self.stream, self.advance) as channel:
                self.run(Pieces(channel, self.pieces(large)))
        if small:
            self.run_bundles(small)

    def run(self, traffic: Pieces | Bundles) -> None:
        if self.to_gpu:
            traffic.to_device()
        else:
            traffic.to_host()

    # ------------------------------------------------------------ small storages

    def run_bundles(self, indices: Sequence[int]) -> None:
        batches = (indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH))
        bundles = chain.from_iterable(map(self.bundles, batches))
        # On the caller's stream: the allocator reuses memory only on the stream that allocated it.
        with self.ring.channel(self.caller, self.advance) as channel:
            self.run(Bundles(channel, bundles, self.arrived))

    def bundles(self, indices: Sequence[int]) -> Iterator[Bundle]:
        batch, firsts, first = self.batch, self.batch.moves.firsts, indices[0]
        dense = batch.dense[first : indices[-1] + 1]
        dtypes, shapes = batch.moves.storages.metadata.dtypes, batch.moves.storages.metadata.shapes
        # Not self.batch: in Python 3.11 a comprehension has its own frame, which an error would keep, with self.
        tensors = [batch.sources[index] if dense[index - first] else _reached(batch, index) for index in indices]
        kinds = [
            (dtypes[firsts[index]], shapes[firsts[index]]) if dense[index - first] else (tensor.dtype, tensor.shape)
            for index, tensor in zip(indices, tensors, strict=True)
        ]
        return bundled(tensors, kinds, indices, self.ring.slot_bytes)

    def arrived(self, indices: Sequence[int], copies: Sequence[Tensor]) -> None:
        for index, copy in zip(indices, copies, strict=True):
            self.copies[index] = copy

    # ------------------------------------------------------------ large storages

    def pieces(self, indices: Sequence[int]) -> Iterator[Piece]:
        for index in indices:
            source, storage, *_ = self.batch[index]
            copy = self.copies[index]
            assert copy is not None
            for start, stop, begin in packed(storage.spans)[0] if not storage.opaque else ():
                yield from self.cut(bytes_of(source, start, stop), bytes_of(copy, begin, begin + stop - start))

    def empty_copy(self, storage_copy: StorageCopy) -> Tensor:
        if storage_copy.storage.opaque:
            return copy_storage(storage_copy)
        dtype = storage_copy.source.dtype if storage_copy.dense else torch.uint8
        shape = storage_copy.source.shape if storage_copy.dense else (packed(storage_copy.storage.spans)[1],)
        copy = torch.empty(shape, dtype=dtype, device=self.target)
        if not self.to_gpu:
            ask_for_huge_pages(copy)
        return copy

    def cut(self, source: Tensor, copy: Tensor) -> Iterator[Piece]:
        host, device = (source, copy) if self.to_gpu else (copy, source)
        if self.to_gpu and host.is_pinned():
            device.copy_(host, non_blocking=True)
            self.advance(host.nbytes)
            return
        address = host.data_ptr()
        for part in device.split(self.ring.slot_bytes):  # type: ignore[no-untyped-call]
            yield Piece(host, address, part, part.nbytes)
            address += part.nbytes


def _reached(batch: CopyBatch, index: int) -> Tensor:
    source, storage, *_ = batch[index]
    return bytes_of(source, *storage.spans[0])
