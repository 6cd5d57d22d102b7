"""Large blocks travel in pieces, each as much as a slot holds."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from torch import Tensor

from torchmove.staging.traffic import Cancelled, Road, Slot, Traffic


class Piece(NamedTuple):
    """Bytes at an address in host memory, and their place on the device. `owner` keeps the address valid."""

    owner: Tensor
    address: int
    device: Tensor
    nbytes: int

    def host_to_slot(self, slot: Tensor) -> None:
        ctypes.memmove(slot.data_ptr(), self.address, self.nbytes)

    def slot_to_device(self, slot: Tensor) -> None:
        self.device.copy_(slot if slot.nbytes == self.nbytes else slot[: self.nbytes], non_blocking=True)

    def device_to_slot(self, slot: Tensor) -> None:
        (slot if slot.nbytes == self.nbytes else slot[: self.nbytes]).copy_(self.device, non_blocking=True)

    def slot_to_host(self, slot: Tensor) -> None:
        ctypes.memmove(self.address, slot.data_ptr(), self.nbytes)


class Pieces(Traffic[Piece]):
    """Pieces on their way. Workers copy between slots and host memory, the copy engine between slots and the device."""

    def __init__(self, road: Road, pieces: Iterable[Piece]) -> None:
        super().__init__(road)
        self.pieces = iter(pieces)
        self.most_on_link = max(1, len(self.free) - len(self.workers))
        self.on_link: deque[tuple[Piece, Slot]] = deque()

    def to_device(self) -> None:
        self.run(self.up)

    def to_host(self) -> None:
        self.run(self.down)

    def up(self) -> None:
        while True:
            for piece in self.next_pieces():
                slot = self.free.pop()
                self.give(partial(piece.host_to_slot, slot.bytes), piece, slot)
            if self.at_work:
                piece, slot = self.take()
                piece.slot_to_device(slot.bytes)
                self.send(piece, slot)
            elif not self.on_link:
                return
            while self.on_link and (not self.at_work or len(self.on_link) > self.most_on_link or self.has_arrived()):
                piece, slot = self.receive()
                self.free.append(slot)
                self.advance(piece.nbytes)

    def down(self) -> None:
        while True:
            for piece in self.next_pieces():
                slot = self.free.pop()
                piece.device_to_slot(slot.bytes)
                self.send(piece, slot)
            while self.on_link and (len(self.at_work) < len(self.workers) or self.has_arrived()):
                piece, slot = self.receive()
                self.give(partial(piece.slot_to_host, slot.bytes), piece, slot)
            if not self.at_work:
                return
            piece, slot = self.take()
            self.free.append(slot)
            self.advance(piece.nbytes)

    def next_pieces(self) -> Iterator[Piece]:
        """As many as there are free slots."""
        while self.free and (piece := next(self.pieces, None)) is not None:
            if self.cancelled:
                raise Cancelled
            yield piece

    def send(self, piece: Piece, slot: Slot) -> None:
        slot.event.record(self.stream)
        self.on_link.append((piece, slot))

    def has_arrived(self) -> bool:
        return bool(self.on_link[0][1].event.query())  # type: ignore[no-untyped-call]

    def receive(self) -> tuple[Piece, Slot]:
        piece, slot = self.on_link.popleft()
        slot.event.synchronize()
        return piece, slot
