"""From the devices into the arena; what is there already, and true, is not copied again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove._records import Advance, Inventory, Load
from torchmove._storage import bytes_of, has_storage, packed
from torchmove.parking.arena import rounded
from torchmove.parking.counters import Counters, Versions
from torchmove.parking.fingerprints import MIB, Taker
from torchmove.parking.lanes import Lane, Piece, is_addressed, nobody, runs
from torchmove.parking.mirrors import Mirror, Run, kind_of, mirrors
from torchmove.parking.ordinary import copy_rest
from torchmove.parking.segments import SMALL_BYTES, fillers
from torchmove.staging import CannotLock


class _Item(NamedTuple):
    """A block on its way down."""

    number: int  # in the load
    source: Tensor
    address: int  # of its storage, on the device
    nbytes: int  # that are reached
    places: Sequence[tuple[int, int, int]]  # where they are in the storage, and where they go in the copy
    versions: Versions
    group: int

    @property
    def is_whole(self) -> bool:
        return self.places[0][:2] == (0, self.nbytes)

    def pieces(self, mirror: Mirror) -> Iterator[Piece]:
        for start, stop, begin in self.places:
            yield self.piece(mirror, start, stop, begin)

    def piece(self, mirror: Mirror, start: int, stop: int, begin: int) -> Piece:
        """From there to there in the storage, and where that begins in the mirror."""
        device, extent = self.source.device, mirror.span.extent
        seen = None if is_addressed(device) else bytes_of(self.source, start, stop)
        return Piece(device, self.address + start, extent, mirror.span.offset + begin, stop - start, seen)


_Pair = tuple[_Item, Mirror]


class Down:
    """A mover. What the arena does not take goes to ordinary memory, and `why` says so."""

    name = "arena"

    def __init__(self, inventory: Inventory, *, host_bytes: int | None = None) -> None:
        self.slots, self.counters, self.host_bytes = inventory.slots, Counters(inventory), host_bytes
        self.lane = Lane(down=True)
        self.advance: Advance = nobody
        self.copied_bytes = self.unchanged_bytes = self.ordinary_bytes = 0
        self.why = ""

    def finish(self) -> None:
        self.lane.finish(self.advance)

    def copy(self, load: Load, advance: Advance) -> list[Tensor]:
        self.advance = advance
        with mirrors.guard:
            for device in {home for home, _ in load.moves.ways if is_addressed(home)}:
                fillers.pop(device, None)
                torch.cuda.synchronize(device)  # all that was written to the blocks, on any stream
            pairs = self.reserve(sorted(self.items(load), key=lambda item: (item.group, item.address)))
            changed, suspects = _told_apart(pairs)
            asked = _asked(suspects, pairs)
            self.send(changed)
            copies: list[Tensor | None] = [None] * len(load)
            for item, mirror in pairs:
                kind = kind_of(item.source, mirror.span.nbytes, dense=load.dense[item.number])
                copies[item.number] = mirror.lend(kind)
            self.send(_answered(asked, suspects))
            self.take_back(pairs, copies)
            self.ordinary_bytes = copy_rest(load, copies, advance)
            return [copy for copy in copies if copy is not None]

    def items(self, load: Load) -> Iterator[_Item]:
        roles, special = self.slots.roles(), load.moves.blocks.special
        for (home, _), indices in load.moves.ways.items():
            if not has_storage(home.type):
                continue
            for index in indices:
                first, source = load.moves.firsts[index], load.sources[index]
                block = special.get(first)
                if load.moves.nbytes[index] == 0 or (block is not None and block.opaque):
                    continue
                size = load.moves.nbytes[index]
                places, size = ([(0, size, 0)], size) if block is None else packed(block.spans)
                versions = self.counters.of((first,) if block is None else block.slots)
                address = source.data_ptr() if load.dense[index] else source.untyped_storage().data_ptr()
                group = _group(roles[first], source, size)
                yield _Item(index, source, address, size, places, versions, group)

    def reserve(self, items: Sequence[_Item]) -> list[_Pair]:
        """Those that the arena takes, each with its mirror."""
        pairs: list[_Pair] = []
        for locked in (True, False):
            some = [item for item in items if is_addressed(item.source.device) == locked]
            if some:
                found = mirrors.reserve(some, locked=locked, most=self.host_bytes)
                pairs += [(item, mirror) for item, mirror in zip(some, found, strict=True) if mirror is not None]
        if len(pairs) < len(items):
            self.why = f"host_bytes={self.host_bytes} is not enough for all of it"
        self.unchanged_bytes = sum(item.nbytes for item, _ in pairs)
        return pairs

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

    def take_back(self, pairs: Sequence[_Pair], copies: list[Tensor | None]) -> None:
        """What could not be locked is not lent either."""
        for item, mirror in pairs if self.why else ():
            if mirror.span.offset + mirror.span.nbytes > mirror.span.extent.ready:
                copies[item.number] = None
                mirrors.forget([item.source])
                self.copied_bytes -= item.nbytes


# ---------------------------------------------------------------- what has changed


def _told_apart(pairs: Sequence[_Pair]) -> tuple[list[Piece], dict[Run, list[_Pair]]]:
    """What is known to have changed, or not known to be true; and those whose fingerprint must tell, by run."""
    changed: list[Piece] = []
    suspects: defaultdict[Run, list[_Pair]] = defaultdict(list)
    for item, mirror in pairs:
        truth, mirror.truth = mirror.truth, None  # it may be overwritten from now on
        if truth is None or not item.is_whole or truth[:2] != (item.address, item.versions):
            changed += item.pieces(mirror)
        else:
            suspects[truth.run].append((item, mirror))
    return changed, suspects


def _asked(suspects: Iterable[Run], pairs: Sequence[_Pair]) -> list[tuple[Run, list[tuple[int, Tensor]]]]:
    """The differences of each run, for which nothing has been waited yet."""
    present = {(item.address, item.nbytes): item for item, _ in pairs} if suspects else {}
    try:
        takers = {device: Taker(device) for device in {run.piece.device for run in suspects}}
        return [(run, list(_differences(run, present, takers[run.piece.device]))) for run in suspects]
    except torch.OutOfMemoryError:
        return [(run, []) for run in suspects]  # a full card: then all of it travels


def _answered(asked: list[tuple[Run, list[tuple[int, Tensor]]]], suspects: dict[Run, list[_Pair]]) -> list[Piece]:
    """Every MiB of the suspects in which a bit is another."""
    changed: list[Piece] = []
    for run, differences in asked:
        is_same = [False] * len(run.fingerprint)
        for first, differs in differences:
            is_same[first : first + len(differs)] = [not each for each in differs.tolist()]
        if all(is_same):
            continue
        for item, mirror in suspects[run]:
            for start, stop in _others(is_same, item.address - run.piece.address, item.nbytes):
                changed.append(item.piece(mirror, start, stop, start))
    return changed


def _group(role: str, source: Tensor, nbytes: int) -> int:
    """Gradients come and go, weights that are trained change with their optimizer's state, others do not. Each group
    has memory of its own on the device, so that what one does to it does not concern the others."""
    kind = 2 if role == "gradient" else 1 if role == "state" or source.requires_grad else 0
    return 2 * kind + (nbytes <= SMALL_BYTES)


def _differences(run: Run, present: dict[tuple[int, int], _Item], taker: Taker) -> Iterator[tuple[int, Tensor]]:
    """From which MiB on, and for each whether it is another than it was; as far as the run is still there."""
    end = run.piece.nbytes
    for start, stop in _covered([member for member in run.members if member in present]):
        first = -(-(start - run.piece.address) // MIB)
        last = stop - run.piece.address
        last = end if last >= end else last // MIB * MIB
        if first * MIB < last:
            part = run.piece.part(first * MIB, last)
            if not is_addressed(part.device):
                source = present[run.members[0]].source
                part = part._replace(seen=bytes_of(source, 0, part.nbytes))
            found = taker.take(part.there())
            yield first, found != run.fingerprint[first : first + len(found)]


def _others(is_same: Sequence[bool], start: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """From where to where in a block, which begins at `start` of a run, some MiB of the run is another."""
    for index in range(start // MIB, (start + nbytes - 1) // MIB + 1):
        if not is_same[index]:
            yield max(0, index * MIB - start), min(nbytes, index * MIB + MIB - start)


def _covered(members: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """From where to where there is one behind the other."""
    covered: list[tuple[int, int]] = []
    for address, nbytes in members:
        if covered and rounded(covered[-1][1]) == address:
            covered[-1] = (covered[-1][0], address + nbytes)
        else:
            covered.append((address, address + nbytes))
    return covered
