"""From the devices into the arena; what is there already, and true, is not copied again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchmove.internals.metadata import has_storage
from torchmove.internals.views import bytes_of, packed
from torchmove.moving.batches import Advance, Load
from torchmove.moving.movers.ring import CannotLock
from torchmove.parking.changes import Doubts
from torchmove.parking.counters import Counters
from torchmove.parking.lanes import Lane, Piece, is_addressed, nobody, runs
from torchmove.parking.leaving import Leaving, Pair, make_leaving
from torchmove.parking.mirrors import Run, kinds_of, mirrors
from torchmove.parking.ordinary import copy_rest
from torchmove.parking.segments import fillers
from torchmove.surveying.inventory import Inventory


class Down:
    """A mover. What the arena does not take goes to ordinary memory, and `why` says so."""

    name = "arena"

    def __init__(self, inventory: Inventory, *, host_bytes: int | None = None) -> None:
        self.slots, self.counters, self.host_bytes = inventory.slots, Counters(inventory), host_bytes
        self.lane = Lane(down=True)
        self.advance: Advance = nobody
        self.doubts: Doubts | None = None
        self.copied_bytes = self.unchanged_bytes = self.ordinary_bytes = 0
        self.why = ""

    def finish(self) -> None:
        """The device has told by now what has changed, while all that needs no bytes was done."""
        doubts, self.doubts = self.doubts, None
        if doubts is not None:
            with mirrors.guard:
                self.send([*doubts.changed()])
        self.lane.finish(self.advance)

    def drop(self) -> None:
        self.doubts = None

    def copy(self, load: Load, advance: Advance) -> list[Tensor]:
        self.advance = advance
        with mirrors.guard:
            for device in {home for home, _ in load.moves.ways if is_addressed(home)}:
                fillers.pop(device, None)
                torch.cuda.synchronize(device)  # all that was written to the blocks, on any stream
            pairs = self.reserve([*self.items(load)])
            changed, suspects = self.told_apart(pairs)
            self.doubts = Doubts(suspects, pairs)
            self.send(changed)
            copies: list[Tensor | None] = [None] * len(load)
            kinds = kinds_of(load)
            for item, mirror in pairs:
                copies[item.number] = mirror.lend(kinds[item.number])
            self.take_back(pairs, copies)
            self.ordinary_bytes = copy_rest(load, copies, advance)
            return [copy for copy in copies if copy is not None]

    def items(self, load: Load) -> Iterator[Leaving]:
        roles, special, nbytes, dense = self.slots.roles(), load.moves.blocks.special, load.moves.nbytes, load.dense[:]
        for (home, _), indices in load.moves.ways.items():
            if not has_storage(home.type):
                continue
            is_seen = not is_addressed(home)
            for index in indices:
                first, source, size = load.moves.firsts[index], load.sources[index], nbytes[index]
                block = special.get(first)
                if size == 0 or (block is not None and block.opaque):
                    continue
                if block is not None:
                    size = packed(block.spans)[1]
                address = source.data_ptr() if dense[index] else source.untyped_storage().data_ptr()
                seen = bytes_of(source, 0, source.untyped_storage().nbytes()) if is_seen else None
                yield make_leaving((index, source, home, address, size, roles[first], first, block, seen))

    def reserve(self, items: Sequence[Leaving]) -> list[Pair]:
        """Those that the arena takes, each with its mirror."""
        pairs: list[Pair] = []
        locked = {device: is_addressed(device) for device in {item.device for item in items}}
        for is_locked in sorted({*locked.values()}, reverse=True):
            some = [item for item in items if locked[item.device] == is_locked]
            found = mirrors.reserve(some, locked=is_locked, most=self.host_bytes)
            pairs += [(item, mirror) for item, mirror in zip(some, found, strict=True) if mirror is not None]
        if len(pairs) < len(items):
            self.why = f"host_bytes={self.host_bytes} is not enough for all of it"
        self.unchanged_bytes = sum(item.nbytes for item, _ in pairs)
        return pairs

    def told_apart(self, pairs: Sequence[Pair]) -> tuple[list[Piece], dict[Run, list[Pair]]]:
        """What is known to have changed, or not known to be true; and those whose fingerprint must tell, by run."""
        changed: list[Piece] = []
        suspects: defaultdict[Run, list[Pair]] = defaultdict(list)
        for item, mirror in pairs:
            truth, mirror.truth = mirror.truth, None  # it may be overwritten from now on
            if truth is not None and item.is_whole and truth[:2] == (item.address, self.counters.of(item.slots)):
                suspects[truth.run].append((item, mirror))
            else:
                changed += item.pieces(mirror)
        return changed, suspects

    def send(self, pieces: list[Piece]) -> None:
        pieces.sort(key=lambda piece: piece.address)
        for run in runs(pieces, to_be_read=True):
            try:
                self.lane.carry(run)
            except CannotLock as error:
                self.why = str(error)
        nbytes = sum(piece.nbytes for piece in pieces)
        self.copied_bytes += nbytes
        self.unchanged_bytes -= nbytes

    def take_back(self, pairs: Sequence[Pair], copies: list[Tensor | None]) -> None:
        """What could not be locked is not lent either."""
        for item, mirror in pairs if self.why else ():
            if mirror.span.offset + mirror.span.nbytes > mirror.span.extent.ready:
                copies[item.number] = None
                mirrors.forget([item.source])
                self.copied_bytes -= item.nbytes
