"""The fast way between host memory and a CUDA device: through the ring of page-locked slots.

Large blocks go in pieces, many at a time. Small ones go in bundles: together over the link, then apart. What is neither
(another kind of device on one side, a tensor that shows no storage) goes as the reference mover does it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove import staging
from torchmove._blocks import copy_block
from torchmove._records import Advance, Block, Cargo, Move
from torchmove._storage import bytes_of, packed
from torchmove.staging import Bundle, Lane, Piece, Ring, bundled

_SMALL_BYTES = 1 << 20


class _Worth(NamedTuple):
    """From how many bytes, or how many blocks, staging is the faster way."""

    nbytes: int
    blocks: int


# Making the ring takes as long as moving so much without it: to the device, and, slower, into fresh host memory.
_FIRST_UP = _Worth(256 << 20, 5000)
_FIRST_DOWN = _Worth(64 << 20, 5000)
_LATER = _Worth(4 << 20, 100)


class Staged:
    name = "staged"

    def copy(self, cargo: Sequence[Cargo], advance: Advance) -> list[Tensor]:
        copies: list[Tensor | None] = [None] * len(cargo)
        ways: defaultdict[tuple[torch.device, torch.device], list[int]] = defaultdict(list)
        for index, each in enumerate(cargo):
            ways[each.block.device, each.target].append(index)
        for (home, target), indices in ways.items():
            if _is_staged(home, target):
                _Way(home, target, cargo, copies, advance).go(indices)
            else:
                for index in indices:
                    copies[index] = copy_block(cargo[index])
                    advance(cargo[index].block.nbytes)
        return [copy for copy in copies if copy is not None]


def between_cpu_and_cuda(move: Move) -> bool:
    return _is_staged(move.block.device, move.target)


def _is_staged(home: torch.device, target: torch.device) -> bool:
    return {home.type, target.type} == {"cpu", "cuda"}


def unfit(moves: Sequence[Move]) -> str:
    """Why these moves cannot be staged, if so."""
    if not moves:
        return ""
    if not any(map(between_cpu_and_cuda, moves)):
        return "nothing moves between cpu and cuda"
    try:
        staging.ring(_device_of(moves))
    except staging.NoRing as error:
        return str(error)
    return ""


def worth(moves: Sequence[Move]) -> bool:
    """Would staging be the faster way?"""
    is_up = any(move.target.type == "cuda" for move in moves)
    least = _LATER if staging.is_ready() else _FIRST_UP if is_up else _FIRST_DOWN
    return len(moves) >= least.blocks or sum(move.block.nbytes for move in moves) >= least.nbytes


def _device_of(moves: Sequence[Move]) -> torch.device:
    devices = (device for move in moves for device in (move.block.device, move.target))
    return next(device for device in devices if device.type == "cuda")


def _is_small(block: Block) -> bool:
    spans = block.spans
    return len(spans) == 1 and 0 < spans[0][1] - spans[0][0] <= _SMALL_BYTES


class _Way:
    """All that goes from one device to one other."""

    def __init__(
        self,
        home: torch.device,
        target: torch.device,
        cargo: Sequence[Cargo],
        copies: list[Tensor | None],
        advance: Advance,
    ) -> None:
        self.is_up = target.type == "cuda"
        self.target, self.cargo, self.copies, self.advance = target, cargo, copies, advance
        device = target if self.is_up else home
        self.ring: Ring = staging.ring(device)
        # Bundles are made and taken apart on the caller's stream: memory of another one is of no use to it later.
        self.caller = torch.cuda.current_stream(device)
        self.stream = self.ring.stream(device)
        # All that was written to the source, on any stream, and all that used the memory that is free now.
        torch.cuda.synchronize(device)

    def go(self, indices: Sequence[int]) -> None:
        small = [index for index in indices if _is_small(self.cargo[index].block)]
        chosen = set(small)
        large = [index for index in indices if index not in chosen]
        # All memory first: an allocation while copies are under way waits for them.
        for index in large:
            self.copies[index] = self.room_for(self.cargo[index])
        if large:
            carry = self.ring.to_device if self.is_up else self.ring.to_host
            carry(self.pieces(large), self.stream, self.advance)
        if small:
            with self.ring.held():
                self.carry_bundles(small)

    # ------------------------------------------------------------ small blocks

    def carry_bundles(self, indices: Sequence[int]) -> None:
        lane, carry = Lane(self.ring.slots, self.caller), staging.to_device if self.is_up else staging.to_host
        for bundle in self.bundles(indices):
            for index, copy in zip(bundle.keys, carry(bundle, lane), strict=True):
                self.copies[index] = copy
            self.advance(sum(tensor.nbytes for tensor in bundle.tensors))
        self.caller.synchronize()

    def bundles(self, indices: Sequence[int]) -> Iterator[Bundle]:
        by_dtype: defaultdict[torch.dtype, tuple[list[Tensor], list[int]]] = defaultdict(lambda: ([], []))
        for index in indices:
            source, block, _, dense = self.cargo[index]
            tensor = source if dense else bytes_of(source, *block.spans[0])
            tensors, keys = by_dtype[tensor.dtype]
            tensors.append(tensor)
            keys.append(index)
        for tensors, keys in by_dtype.values():
            yield from bundled(tensors, keys, self.ring.slot_bytes)

    # ------------------------------------------------------------ large blocks

    def pieces(self, indices: Sequence[int]) -> Iterator[Piece]:
        for index in indices:
            _, block, _, _ = self.cargo[index]
            copy = self.copies[index]
            assert copy is not None
            for start, stop, begin in packed(block.spans)[0] if not block.opaque else ():
                source = bytes_of(self.cargo[index].source, start, stop)
                yield from self.cut(source, bytes_of(copy, begin, begin + stop - start))

    def room_for(self, cargo: Cargo) -> Tensor:
        if cargo.block.opaque:
            return copy_block(cargo)
        dtype = cargo.source.dtype if cargo.dense else torch.uint8
        shape = cargo.source.shape if cargo.dense else (packed(cargo.block.spans)[1],)
        copy = torch.empty(shape, dtype=dtype, device=self.target)
        if not self.is_up:
            staging.ask_for_huge_pages(copy)
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
