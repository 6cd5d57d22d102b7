"""The movers of parking: into the arena, and out of it. What is in the arena and current is not copied again.

Whether a storage has changed is computed on the device, and the result is read when it is needed: nothing waits for it
in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.internals.storages import bytes_of, has_storage, packed
from torchmove.moving.movers import choose_mover
from torchmove.moving.movers.copies import Advance, CopyBatch
from torchmove.moving.movers.ring import CannotLock
from torchmove.parking.arena import (
    Lane,
    Transfer,
    ignore_progress,
    is_addressed,
    rounded,
    runs,
)
from torchmove.parking.host_copies import (
    MIB,
    Baseline,
    FingerprintedRun,
    Fingerprinter,
    HostCopy,
    Kind,
    VersionCounters,
    host_copies,
    kinds_of,
)
from torchmove.surveying.inventory import Inventory, StateStorage
from torchmove.surveying.paths import Role

SMALL_BYTES = 1 << 20  # torch's allocator keeps allocations up to this size in separate segments


def _copy_rest(batch: CopyBatch, copies: list[Tensor | None], advance: Advance) -> int:
    """Copy all storages of a batch that have no copy yet, by an ordinary mover. Returns the number of bytes."""
    rest = [index for index, copy in enumerate(copies) if copy is None]
    if not rest:
        return 0
    part = batch.some(rest)
    for index, copy in zip(rest, choose_mover("auto", part.moves).mover.copy(part, advance), strict=True):
        copies[index] = copy
    return sum(part.moves.nbytes)


class DepartingStorage(NamedTuple):
    """A storage to park: where it is on the device, and which of its bytes the state uses."""

    number: int  # in the batch
    source: Tensor  # is rebound when the move is committed
    device: torch.device
    address: int  # of its storage, on the device
    nbytes: int  # that are reached
    role: Role
    first: int  # index of the first tensor on it
    storage: StateStorage | None  # None: it is the only tensor, and covers all of the storage
    seen: Tensor | None  # the bytes of its storage, where torch cannot use memory by its address

    @property
    def indices(self) -> tuple[int, ...]:
        return (self.first,) if self.storage is None else self.storage.indices

    @property
    def places(self) -> Sequence[tuple[int, int, int]]:
        """Start and stop of its bytes in the storage, and their start in the copy."""
        return [(0, self.nbytes, 0)] if self.storage is None else packed(self.storage.spans)[0]

    @property
    def is_whole(self) -> bool:
        return self.storage is None or self.places[0][:2] == (0, self.nbytes)

    @property
    def group(self) -> int:
        """The memory group: gradients, which are freed often; trained weights and their optimizer state, which change
        together; and all others. Groups do not share device memory, so a change in one leaves the others intact."""
        changes_with_state = self.role == "state" or self.source.requires_grad
        kind = 2 if self.role == "gradient" else 1 if changes_with_state else 0
        return 2 * kind + (self.nbytes <= SMALL_BYTES)

    def pieces(self, host_copy: HostCopy) -> Iterator[Transfer]:
        for start, stop, begin in self.places:
            yield self.piece(host_copy, start, stop, begin)

    def piece(self, host_copy: HostCopy, start: int, stop: int, begin: int) -> Transfer:
        """The transfer of bytes `start` to `stop` of the storage, which begin at `begin` in the host copy."""
        seen = None if self.seen is None else self.seen[start:stop]
        return Transfer(
            self.device, self.address + start, host_copy.span.extent, host_copy.span.offset + begin, stop - start, seen
        )


_make_departing = partial(tuple.__new__, DepartingStorage)  # DepartingStorage(*values) from a tuple, and faster
Pair = tuple[DepartingStorage, HostCopy]

Suspects = Mapping[
    FingerprintedRun, Sequence[Pair]
]  # storages to compare by fingerprint, by the run in which they were copied to the device


class _Comparison(NamedTuple):
    """The first MiB of a run that was compared, and for each MiB whether it is the same, on the device."""

    run: FingerprintedRun
    first: int
    are_same: Tensor


class ChangeCheck:
    """Checks on the device which parked storages changed, by their fingerprints."""

    def __init__(self, suspects: Suspects, pairs: Sequence[Pair]) -> None:
        self._suspects = suspects
        self._comparisons: list[_Comparison] = []
        fingerprinters: dict[torch.device, Fingerprinter] = {}
        with suppress(torch.OutOfMemoryError):  # a full device: what is not compared is copied
            for run, those in suspects.items():
                device = run.piece.device
                if device not in fingerprinters:
                    fingerprinters[device] = Fingerprinter(device)
                for start, stop in _still_there(run, those, pairs):
                    self._comparisons += _comparisons(run, those, start, stop, fingerprinters[device])

    def changed(self) -> Iterator[Transfer]:
        """Every MiB of the suspects that changed or was not compared."""
        same = self._answers()
        for run, those in self._suspects.items():
            if not all(same[run]):
                for item, host_copy in those:
                    for start, stop in _changed_ranges(same[run], item.address - run.piece.address, item.nbytes):
                        yield item.piece(host_copy, start, stop, start)

    def _answers(self) -> dict[FingerprintedRun, list[bool]]:
        """For every MiB of each run: whether it is the same."""
        same = {run: [False] * len(run.fingerprint) for run in self._suspects}
        for run, first, are_same in self._comparisons:
            same[run][first : first + len(are_same)] = are_same.tolist()
        return same


def _still_there(run: FingerprintedRun, those: Sequence[Pair], pairs: Sequence[Pair]) -> list[tuple[int, int]]:
    """The address ranges on the device where storages of the run are still adjacent."""
    members: Sequence[tuple[int, int]] = run.members
    if len(those) < len(members):
        present = {(item.address, item.nbytes) for item, _ in pairs}
        members = [member for member in members if member in present]
    covered: list[tuple[int, int]] = []
    for address, nbytes in members:
        if covered and rounded(covered[-1][1]) == address:
            covered[-1] = (covered[-1][0], address + nbytes)
        else:
            covered.append((address, address + nbytes))
    return covered


def _comparisons(
    run: FingerprintedRun, those: Sequence[Pair], start: int, stop: int, fingerprinter: Fingerprinter
) -> Iterator[_Comparison]:
    """Compare the fingerprints of every whole MiB between two addresses."""
    end = run.piece.nbytes
    first, last = -(-(start - run.piece.address) // MIB), stop - run.piece.address
    last = end if last >= end else last // MIB * MIB
    if first * MIB < last:
        part = run.piece.part(first * MIB, last)
        seen = those[0][0].seen  # without addresses, a run is one storage
        if seen is not None:
            part = part._replace(seen=seen[first * MIB : last])
        found = fingerprinter.take(part.on_device())
        yield _Comparison(run, first, found == run.fingerprint[first : first + len(found)])


def _changed_ranges(same: Sequence[bool], start: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The byte ranges of a storage, which begins at `start` of a run, whose MiB changed."""
    for index in range(start // MIB, (start + nbytes - 1) // MIB + 1):
        if not same[index]:
            yield max(0, index * MIB - start), min(nbytes, index * MIB + MIB - start)


# ---------------------------------------------------------------- into the arena


class IntoArena:
    """The mover that parks. What does not fit into the arena goes to ordinary memory, and `why` says why."""

    name = "arena"

    def __init__(self, inventory: Inventory, *, host_bytes: int | None = None) -> None:
        self.tensors, self.counters, self.host_bytes = inventory.tensors, VersionCounters(inventory), host_bytes
        self.lane = Lane(to_host=True)
        self.advance: Advance = ignore_progress
        self.change_check: ChangeCheck | None = None
        self.copied_bytes = self.unchanged_bytes = self.ordinary_bytes = 0
        self.why = ""

    def finish(self) -> None:
        """Copy what changed. The device compared fingerprints while the commit did what needs no bytes."""
        change_check, self.change_check = self.change_check, None
        if change_check is not None:
            with host_copies.guard:
                self.send([*change_check.changed()])
        self.lane.finish(self.advance)

    def drop(self) -> None:
        self.change_check = None

    def copy(self, batch: CopyBatch, advance: Advance) -> list[Tensor]:
        self.advance = advance
        with host_copies.guard:
            for device in {origin for origin, _ in batch.moves.ways if is_addressed(origin)}:
                fillers.pop(device, None)
                torch.cuda.synchronize(device)  # wait for writes to the storages on any stream
            pairs = self.reserve([*self.items(batch)])
            changed, suspects = self.split_by_change(pairs)
            self.change_check = ChangeCheck(suspects, pairs)
            self.send(changed)
            copies: list[Tensor | None] = [None] * len(batch)
            kinds = kinds_of(batch)
            for item, host_copy in pairs:
                copies[item.number] = host_copy.lease(kinds[item.number])
            self.drop_unlocked(pairs, copies)
            self.ordinary_bytes = _copy_rest(batch, copies, advance)
            return [copy for copy in copies if copy is not None]

    def items(self, batch: CopyBatch) -> Iterator[DepartingStorage]:
        roles, special, nbytes, dense = (
            self.tensors.roles(),
            batch.moves.storages.special,
            batch.moves.nbytes,
            batch.dense[:],
        )
        for (origin, _), indices in batch.moves.ways.items():
            if not has_storage(origin.type):
                continue
            is_seen = not is_addressed(origin)
            for index in indices:
                first, source, size = batch.moves.firsts[index], batch.sources[index], nbytes[index]
                storage = special.get(first)
                if size == 0 or (storage is not None and storage.opaque):
                    continue
                if storage is not None:
                    size = packed(storage.spans)[1]
                address = source.data_ptr() if dense[index] else source.untyped_storage().data_ptr()
                seen = bytes_of(source, 0, source.untyped_storage().nbytes()) if is_seen else None
                yield _make_departing((index, source, origin, address, size, roles[first], first, storage, seen))

    def reserve(self, items: Sequence[DepartingStorage]) -> list[Pair]:
        """The storages that fit into the arena, each with its host copy."""
        pairs: list[Pair] = []
        locked = {device: is_addressed(device) for device in {item.device for item in items}}
        for is_locked in sorted({*locked.values()}, reverse=True):
            some = [item for item in items if locked[item.device] == is_locked]
            found = host_copies.reserve(some, locked=is_locked, most=self.host_bytes)
            pairs += [(item, host_copy) for item, host_copy in zip(some, found, strict=True) if host_copy is not None]
        if len(pairs) < len(items):
            self.why = f"host_bytes={self.host_bytes} is too small for the whole state"
        self.unchanged_bytes = sum(item.nbytes for item, _ in pairs)
        return pairs

    def split_by_change(self, pairs: Sequence[Pair]) -> tuple[list[Transfer], dict[FingerprintedRun, list[Pair]]]:
        """Storages that changed or have no baseline; and, by run, those to compare by fingerprint."""
        changed: list[Transfer] = []
        suspects: defaultdict[FingerprintedRun, list[Pair]] = defaultdict(list)
        for item, host_copy in pairs:
            baseline, host_copy.baseline = host_copy.baseline, None  # the host copy may be overwritten from now on
            if (
                baseline is not None
                and item.is_whole
                and baseline[:2] == (item.address, self.counters.of(item.indices))
            ):
                suspects[baseline.run].append((item, host_copy))
            else:
                changed += item.pieces(host_copy)
        return changed, suspects

    def send(self, pieces: list[Transfer]) -> None:
        pieces.sort(key=lambda piece: piece.address)
        for run in runs(pieces, to_be_read=True):
            try:
                self.lane.send(run)
            except CannotLock as error:
                self.why = str(error)
        nbytes = sum(piece.nbytes for piece in pieces)
        self.copied_bytes += nbytes
        self.unchanged_bytes -= nbytes

    def drop_unlocked(self, pairs: Sequence[Pair], copies: list[Tensor | None]) -> None:
        """Give up host copies whose memory could not be locked."""
        for item, host_copy in pairs if self.why else ():
            if host_copy.span.offset + host_copy.span.nbytes > host_copy.span.extent.ready:
                copies[item.number] = None
                host_copies.forget([item.source])
                self.copied_bytes -= item.nbytes


# ---------------------------------------------------------------- out of the arena


# Device memory for what wakes: large pieces are allocated and returned to torch's cache; the storages, which are
# allocated next, are cut from them. Asking the driver for each storage would take much longer.
_SEGMENT = 1 << 30
_STEP, _LEAST = 2 << 20, 10 << 20  # from _LEAST on, torch's allocator asks the driver for multiples of _STEP

# The rest of each segment is allocated too: another tensor in it would keep the segment from being freed.
fillers: dict[torch.device, list[Tensor]] = {}


class Allocation(NamedTuple):
    """The device memory one storage needs; storages of different groups do not share a segment."""

    nbytes: int
    group: int
    make: Callable[[], Tensor]


def allocations(wanted: Sequence[Allocation], device: torch.device) -> Iterator[Tensor]:
    """Allocate them, in order."""
    for segment in _segments(wanted):
        nbytes = sum(rounded(each.nbytes) for each in segment if each.nbytes > SMALL_BYTES)
        if nbytes:
            with suppress(torch.OutOfMemoryError):  # no contiguous memory; torch's cache may have enough
                torch.empty(nbytes, dtype=torch.uint8, device=device)  # freed at once, into torch's cache
        for each in segment:
            yield each.make()
        left = -nbytes % _STEP
        if nbytes >= _LEAST and left > SMALL_BYTES:
            fillers.setdefault(device, []).append(torch.empty(left, dtype=torch.uint8, device=device))


def _segments(wanted: Sequence[Allocation]) -> Iterator[list[Allocation]]:
    segment: list[Allocation] = []
    nbytes = 0
    for each in wanted:
        if segment and (segment[-1].group != each.group or nbytes + each.nbytes > _SEGMENT):
            yield segment
            segment, nbytes = [], 0
        segment.append(each)
        nbytes += each.nbytes
    if segment:
        yield segment


class _Item(NamedTuple):
    """A host copy to wake."""

    number: int  # in the batch
    source: Tensor
    target: torch.device
    host_copy: HostCopy
    nbytes: int  # that are reached
    places: Sequence[tuple[int, int, int]]  # start and stop in the host copy, and start in the copy on the device
    indices: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.places[0][:2] == (0, self.host_copy.span.nbytes)

    def pieces(self, copy: Tensor) -> Iterator[Transfer]:
        address = copy.untyped_storage().data_ptr()
        for start, stop, begin in self.places:
            seen = None if is_addressed(self.target) else bytes_of(copy, begin, begin + stop - start)
            span = self.host_copy.span
            yield Transfer(self.target, address + begin, span.extent, span.offset + start, stop - start, seen)


class OutOfArena:
    """The mover that wakes. What is not in the arena is copied by an ordinary mover."""

    name = "arena"

    def __init__(self, inventory: Inventory) -> None:
        self.counters, self.lane = VersionCounters(inventory), Lane(to_host=False)
        self.advance: Advance = ignore_progress
        self.fingerprinters: dict[torch.device, Fingerprinter] = {}
        self._arrived: list[tuple[_Item, int, FingerprintedRun]] = []

    def finish(self) -> None:
        self.lane.finish(self.advance)

    def drop(self) -> None:
        self._arrived.clear()
        self.fingerprinters.clear()

    def copy(self, batch: CopyBatch, advance: Advance) -> list[Tensor]:
        self.advance = advance
        with host_copies.guard:
            copies: list[Tensor | None] = [None] * len(batch)
            items, kinds = sorted(self.items(batch), key=_order), kinds_of(batch)
            for target in {item.target for item in items}:
                those = [item for item in items if item.target == target]
                self.allocate(those, target, kinds, copies)
                self.transfer(those, copies)
            for item in items:
                item.host_copy.prepare(kinds[item.number])
            _copy_rest(batch, copies, advance)
            return [copy for copy in copies if copy is not None]

    def items(self, batch: CopyBatch) -> Iterator[_Item]:
        special = batch.moves.storages.special
        for (origin, target), indices in batch.moves.ways.items():
            if origin.type != "cpu" or not has_storage(target.type):
                continue
            for index in indices:
                first, source = batch.moves.firsts[index], batch.sources[index]
                host_copy = host_copies.of(source)
                if host_copy is None or batch.moves.nbytes[index] == 0:
                    continue
                lease, span = source.untyped_storage(), host_copy.span
                if (lease.data_ptr(), lease.nbytes()) != (span.address, span.nbytes):
                    continue
                storage = special.get(first)
                places, size = ([(0, span.nbytes, 0)], span.nbytes) if storage is None else packed(storage.spans)
                tensors = (first,) if storage is None else storage.indices
                yield _Item(index, source, target, host_copy, size, places, tensors)

    def allocate(
        self,
        items: Sequence[_Item],
        target: torch.device,
        kinds: Sequence[Kind | None],
        copies: list[Tensor | None],
    ) -> None:
        wanted = [
            Allocation(each.nbytes, each.host_copy.group, partial(_empty, each, kinds[each.number])) for each in items
        ]
        made = allocations(wanted, target) if is_addressed(target) else (each.make() for each in wanted)
        for item, copy in zip(items, made, strict=True):
            copies[item.number] = copy
        if is_addressed(target):  # earlier work on that memory must finish before the copies begin
            self.lane.stream(target).wait_stream(torch.cuda.current_stream(target))

    def transfer(self, items: Sequence[_Item], copies: Sequence[Tensor | None]) -> None:
        at: list[tuple[_Item, Transfer]] = []
        for item in items:
            copy = copies[item.number]
            assert copy is not None
            at += ((item, piece) for piece in item.pieces(copy))
        at.sort(key=lambda pair: pair[1].address)
        joined = runs((piece for _, piece in at), to_be_read=False)
        arrived: list[FingerprintedRun | None] = []
        for run in joined:
            self.lane.send(run)
            found = self.fingerprint(run)
            arrived.append(None if found is None else FingerprintedRun(run._replace(seen=None), found, []))
        for device in {run.device for run in joined if is_addressed(run.device)}:
            # Later work on the caller's stream waits for the copies.
            torch.cuda.current_stream(device).wait_stream(self.lane.stream(device))
        starts = [run.address for run in joined]
        for item, piece in at:
            its = arrived[bisect_right(starts, piece.address) - 1]
            if its is not None and item.is_whole:
                its.members.append((piece.address, piece.nbytes))
                self._arrived.append((item, piece.address, its))

    def fingerprint(self, run: Transfer) -> Tensor | None:
        """The fingerprint of a run, on CUDA in the caller's stream, beside the next copies. None: out of memory."""
        try:
            if run.device not in self.fingerprinters:
                self.fingerprinters[run.device] = Fingerprinter(run.device)
            if is_addressed(run.device):
                torch.cuda.current_stream(run.device).wait_stream(self.lane.stream(run.device))
            return self.fingerprinters[run.device].take(run.on_device())
        except torch.OutOfMemoryError:
            return None  # a full device: the next park will copy all of the run

    def remember(self) -> None:
        """After the commit: record baselines, since device and host copies are equal now, except for host copies that
        user code still holds."""
        with host_copies.guard:
            for item, address, run in self._arrived:
                if not item.host_copy.is_leased:
                    item.host_copy.baseline = Baseline(address, self.counters.of(item.indices), run)
        self.drop()


def _order(item: _Item) -> tuple[int, int]:
    return item.host_copy.span.extent.address, item.host_copy.span.offset


def _empty(item: _Item, kind: Kind | None) -> Tensor:
    dtype, shape = kind or (torch.uint8, (item.nbytes,))
    return torch.empty(shape, dtype=dtype, device=item.target)
