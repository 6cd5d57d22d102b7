"""From the devices into the arena; what is there already, and true, is not copied again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove import movers
from torchmove._records import Advance, Load, Slots
from torchmove._storage import bytes_of, has_storage, packed
from torchmove.parking.arena import rounded
from torchmove.parking.fingerprints import MIB, fingerprint
from torchmove.parking.lanes import Lane, Piece, is_addressed, runs
from torchmove.parking.mirrors import Mirror, Run, Versions, Wanted, mirrors
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


class Down:
    """A mover. What the arena does not take goes to ordinary memory, and `why` says so."""

    name = "arena"

    def __init__(self, slots: Slots, *, host_bytes: int | None = None, patient: bool = True) -> None:
        self.slots, self.host_bytes, self.patient = slots, host_bytes, patient
        self.copied_bytes = self.unchanged_bytes = self.ordinary_bytes = 0
        self.why = ""

    def copy(self, load: Load, advance: Advance) -> list[Tensor]:
        with mirrors.guard:
            for device in {home for home, _ in load.moves.ways if is_addressed(home)}:
                fillers.pop(device, None)
                torch.cuda.synchronize(device)  # all that was written to the blocks, on any stream
            items = sorted(self.items(load), key=lambda item: (str(item.source.device), item.group, item.address))
            self.reserve(items)
            self.fill(list(self.changed(items)), items, advance)
            copies: list[Tensor | None] = [None] * len(load)
            for item in items:
                mirror = mirrors.of(item.source)
                if mirror is not None:
                    copies[item.number] = _lent(mirror, item.source, dense=load.dense[item.number])
            self.by_other_means(load, copies, advance)
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
                versions = versions_of(self.slots, (first,) if block is None else block.slots)
                address = source.untyped_storage().data_ptr()
                group = _group(roles[first], source, size)
                yield _Item(index, source, address, size, places, versions, group)

    def reserve(self, items: Sequence[_Item]) -> None:
        for locked in (True, False):
            those = [item for item in items if is_addressed(item.source.device) == locked]
            wanted = [Wanted(item.source, item.nbytes, item.group) for item in those]
            if wanted:
                mirrors.reserve(wanted, locked=locked, most=self.host_bytes)
        if self.host_bytes is not None and any(mirrors.of(item.source) is None for item in items):
            self.why = f"host_bytes={self.host_bytes} is not enough for all of it"

    # ------------------------------------------------------------ what has changed

    def changed(self, items: Sequence[_Item]) -> Iterator[Piece]:
        """All of a block whose mirror is not known to be true; of others, every MiB in which a bit is another."""
        suspects: defaultdict[Run, list[tuple[_Item, Mirror]]] = defaultdict(list)
        for item in items:
            mirror = mirrors.of(item.source)
            if mirror is None:
                continue
            truth, mirror.truth = mirror.truth, None  # it may be overwritten from now on
            if truth is None or not item.is_whole or truth[:2] != (item.address, item.versions):
                yield from item.pieces(mirror)
            else:
                suspects[truth.run].append((item, mirror))
        present = {(item.address, item.nbytes): item for item in items} if suspects else {}
        # Nothing is waited for until all has been asked.
        asked = [(run, list(_differences(run, present))) for run in suspects]
        for run, differences in asked:
            is_same = [False] * len(run.fingerprint)
            for first, differs in differences:
                is_same[first : first + len(differs)] = [not each for each in differs.tolist()]
            for item, mirror in suspects[run]:
                for start, stop in _others(is_same, item.address - run.piece.address, item.nbytes):
                    yield item.piece(mirror, start, stop, start)

    # ------------------------------------------------------------ what travels

    def fill(self, pieces: list[Piece], items: Sequence[_Item], advance: Advance) -> None:
        lane = Lane(advance, down=True, patient=self.patient)
        pieces.sort(key=lambda piece: (str(piece.device), piece.address))
        for run in runs(pieces):
            try:
                lane.carry(run)
            except CannotLock as error:
                self.why = str(error)
        if self.why:
            mirrors.forget(item.source for item in items if not _is_ready(mirrors.of(item.source)))
        there = sum(item.nbytes for item in items if mirrors.of(item.source) is not None)
        self.copied_bytes = min(there, sum(piece.nbytes for piece in pieces))
        self.unchanged_bytes = there - self.copied_bytes

    def by_other_means(self, load: Load, copies: list[Tensor | None], advance: Advance) -> None:
        others = [index for index, copy in enumerate(copies) if copy is None]
        if others:
            part = load.some(others)
            self.ordinary_bytes = sum(part.moves.nbytes)
            for index, copy in zip(others, movers.choose("auto", part.moves).mover.copy(part, advance), strict=True):
                copies[index] = copy


def versions_of(slots: Slots, indices: Sequence[int]) -> Versions:
    """How often each tensor that looks at a block was written to, as far as torch counts."""
    tensors = (slots.tensors[index] for index in indices)
    return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)


def _group(role: str, source: Tensor, nbytes: int) -> int:
    """Gradients come and go, weights that are trained change with their optimizer's state, others do not. Each group
    has memory of its own on the device, so that what one does to it does not concern the others."""
    kind = 2 if role == "gradient" else 1 if role == "state" or source.requires_grad else 0
    return 2 * kind + (nbytes <= SMALL_BYTES)


def _differences(run: Run, present: dict[tuple[int, int], _Item]) -> Iterator[tuple[int, Tensor]]:
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
            try:
                found = fingerprint(part.there())
            except torch.OutOfMemoryError:
                return  # a full card: then it travels
            yield first, (found != run.fingerprint[first : first + len(found)]).any(1)


def _others(is_same: Sequence[bool], start: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """From where to where in a block, which begins at `start` of a run, some MiB of the run is another."""
    for index in range(start // MIB, (start + nbytes - 1) // MIB + 1):
        if not is_same[index]:
            yield max(0, index * MIB - start), min(nbytes, index * MIB + MIB - start)


def _is_ready(mirror: Mirror | None) -> bool:
    return mirror is None or mirror.span.offset + mirror.span.nbytes <= mirror.span.extent.ready


def _covered(members: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """From where to where there is one behind the other."""
    covered: list[tuple[int, int]] = []
    for address, nbytes in members:
        if covered and rounded(covered[-1][1]) == address:
            covered[-1] = (covered[-1][0], address + nbytes)
        else:
            covered.append((address, address + nbytes))
    return covered


def _lent(mirror: Mirror, source: Tensor, *, dense: bool) -> Tensor:
    """A tensor on the CPU that looks at the mirror: like the source, or its bytes."""
    view = mirror.lend()
    if not dense:
        return torch.frombuffer(view, dtype=torch.uint8)
    return torch.frombuffer(view, dtype=source.dtype).view(source.shape)
