"""From the arena back to the devices, and what is remembered there, so that next time only what changed travels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.internals.metadata import has_storage
from torchmove.internals.views import bytes_of, packed
from torchmove.moving.batches import Advance, Load
from torchmove.parking.counters import Counters
from torchmove.parking.fingerprints import Taker
from torchmove.parking.lanes import Lane, Piece, is_addressed, nobody, runs
from torchmove.parking.mirrors import Kind, Mirror, Run, Truth, kinds_of, mirrors
from torchmove.parking.ordinary import copy_rest
from torchmove.parking.segments import Room, rooms
from torchmove.surveying.inventory import Inventory


class _Item(NamedTuple):
    """A block on its way up."""

    number: int  # in the load
    source: Tensor
    target: torch.device
    mirror: Mirror
    nbytes: int  # that are reached
    places: Sequence[tuple[int, int, int]]  # where they are in the mirror, and where they go in the copy
    slots: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.places[0][:2] == (0, self.mirror.span.nbytes)

    def pieces(self, copy: Tensor) -> Iterator[Piece]:
        address = copy.untyped_storage().data_ptr()
        for start, stop, begin in self.places:
            seen = None if is_addressed(self.target) else bytes_of(copy, begin, begin + stop - start)
            span = self.mirror.span
            yield Piece(self.target, address + begin, span.extent, span.offset + start, stop - start, seen)


class Up:
    """A mover. What is not in the arena comes as it would in any move."""

    name = "arena"

    def __init__(self, inventory: Inventory) -> None:
        self.counters, self.lane = Counters(inventory), Lane(down=False)
        self.advance: Advance = nobody
        self.takers: dict[torch.device, Taker] = {}
        self._arrived: list[tuple[_Item, int, Run]] = []

    def finish(self) -> None:
        self.lane.finish(self.advance)

    def drop(self) -> None:
        self._arrived.clear()
        self.takers.clear()

    def copy(self, load: Load, advance: Advance) -> list[Tensor]:
        self.advance = advance
        with mirrors.guard:
            copies: list[Tensor | None] = [None] * len(load)
            items, kinds = sorted(self.items(load), key=_order), kinds_of(load)
            for target in {item.target for item in items}:
                those = [item for item in items if item.target == target]
                self.make_room(those, target, kinds, copies)
                self.carry(those, copies)
            for item in items:
                item.mirror.prepare(kinds[item.number])
            copy_rest(load, copies, advance)
            return [copy for copy in copies if copy is not None]

    def items(self, load: Load) -> Iterator[_Item]:
        special = load.moves.blocks.special
        for (home, target), indices in load.moves.ways.items():
            if home.type != "cpu" or not has_storage(target.type):
                continue
            for index in indices:
                first, source = load.moves.firsts[index], load.sources[index]
                mirror = mirrors.of(source)
                if mirror is None or load.moves.nbytes[index] == 0:
                    continue
                storage, span = source.untyped_storage(), mirror.span
                if (storage.data_ptr(), storage.nbytes()) != (span.address, span.nbytes):
                    continue
                block = special.get(first)
                places, size = ([(0, span.nbytes, 0)], span.nbytes) if block is None else packed(block.spans)
                slots = (first,) if block is None else block.slots
                yield _Item(index, source, target, mirror, size, places, slots)

    def make_room(
        self,
        items: Sequence[_Item],
        target: torch.device,
        kinds: Sequence[Kind | None],
        copies: list[Tensor | None],
    ) -> None:
        wanted = [Room(each.nbytes, each.mirror.group, partial(_empty, each, kinds[each.number])) for each in items]
        made = rooms(wanted, target) if is_addressed(target) else (room.make() for room in wanted)
        for item, copy in zip(items, made, strict=True):
            copies[item.number] = copy
        if is_addressed(target):  # whoever used that memory before is done with it when the copies begin
            self.lane.stream(target).wait_stream(torch.cuda.current_stream(target))

    def carry(self, items: Sequence[_Item], copies: Sequence[Tensor | None]) -> None:
        at: list[tuple[_Item, Piece]] = []
        for item in items:
            copy = copies[item.number]
            assert copy is not None
            at += ((item, piece) for piece in item.pieces(copy))
        at.sort(key=lambda pair: pair[1].address)
        joined = runs((piece for _, piece in at), to_be_read=False)
        arrived: list[Run | None] = []
        for run in joined:
            self.lane.carry(run)
            found = self.fingerprint(run)
            arrived.append(None if found is None else Run(run._replace(seen=None), found, []))
        for device in {run.device for run in joined if is_addressed(run.device)}:
            # Whatever the caller's thread asks of the device from now on comes after them.
            torch.cuda.current_stream(device).wait_stream(self.lane.stream(device))
        starts = [run.address for run in joined]
        for item, piece in at:
            its = arrived[bisect_right(starts, piece.address) - 1]
            if its is not None and item.is_whole:
                its.members.append((piece.address, piece.nbytes))
                self._arrived.append((item, piece.address, its))

    def fingerprint(self, run: Piece) -> Tensor | None:
        """On CUDA in the caller's stream, beside the next copies. None: there is no room for it."""
        try:
            if run.device not in self.takers:
                self.takers[run.device] = Taker(run.device)
            if is_addressed(run.device):
                torch.cuda.current_stream(run.device).wait_stream(self.lane.stream(run.device))
            return self.takers[run.device].take(run.there())
        except torch.OutOfMemoryError:
            return None  # a full card: next time all of the run will travel

    def remember(self) -> None:
        """After the commit: what is on the device now is what the mirrors show, unless somebody else looks at
        those."""
        with mirrors.guard:
            for item, address, run in self._arrived:
                if not item.mirror.is_lent:
                    item.mirror.truth = Truth(address, self.counters.of(item.slots), run)
        self.drop()


def _order(item: _Item) -> tuple[int, int]:
    return item.mirror.span.extent.address, item.mirror.span.offset


def _empty(item: _Item, kind: Kind | None) -> Tensor:
    dtype, shape = kind or (torch.uint8, (item.nbytes,))
    return torch.empty(shape, dtype=dtype, device=item.target)
