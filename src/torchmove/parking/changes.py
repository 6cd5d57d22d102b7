"""What has changed on a device since it was copied up there.

The device is asked, and its answer read when it is needed: nothing is waited for in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.parking.arena import rounded
from torchmove.parking.fingerprints import MIB, Taker
from torchmove.parking.lanes import Piece
from torchmove.parking.leaving import Pair
from torchmove.parking.mirrors import Run

Suspects = Mapping[Run, Sequence[Pair]]  # blocks whose fingerprints must tell, by the run that they came up in


class _Asked(NamedTuple):
    """From which MiB of a run on, and for each whether it is what it was: on the device."""

    run: Run
    first: int
    are_same: Tensor


class Doubts:
    """The suspects, until the device has told."""

    def __init__(self, suspects: Suspects, pairs: Sequence[Pair]) -> None:
        self._suspects = suspects
        self._asked: list[_Asked] = []
        takers: dict[torch.device, Taker] = {}
        with suppress(torch.OutOfMemoryError):  # a full card: what it is not asked travels
            for run, those in suspects.items():
                device = run.piece.device
                if device not in takers:
                    takers[device] = Taker(device)
                for start, stop in _still_there(run, those, pairs):
                    self._asked += _asked(run, those, start, stop, takers[device])

    def changed(self) -> Iterator[Piece]:
        """Every MiB of the suspects in which a bit is another, or of which the device was not asked."""
        same = self._answers()
        for run, those in self._suspects.items():
            if not all(same[run]):
                for item, mirror in those:
                    for start, stop in _others(same[run], item.address - run.piece.address, item.nbytes):
                        yield item.piece(mirror, start, stop, start)

    def _answers(self) -> dict[Run, list[bool]]:
        """For every MiB of each run: is it the same?"""
        same = {run: [False] * len(run.fingerprint) for run in self._suspects}
        for run, first, are_same in self._asked:
            same[run][first : first + len(are_same)] = are_same.tolist()
        return same


def _still_there(run: Run, those: Sequence[Pair], pairs: Sequence[Pair]) -> list[tuple[int, int]]:
    """From where to where on the device there is one block of the run behind the other."""
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


def _asked(run: Run, those: Sequence[Pair], start: int, stop: int, taker: Taker) -> Iterator[_Asked]:
    """Of the MiB that are there as a whole."""
    end = run.piece.nbytes
    first, last = -(-(start - run.piece.address) // MIB), stop - run.piece.address
    last = end if last >= end else last // MIB * MIB
    if first * MIB < last:
        part = run.piece.part(first * MIB, last)
        seen = those[0][0].seen  # where blocks are seen, a run is one of them
        if seen is not None:
            part = part._replace(seen=seen[first * MIB : last])
        found = taker.take(part.there())
        yield _Asked(run, first, found == run.fingerprint[first : first + len(found)])


def _others(same: Sequence[bool], start: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """From where to where in a block, which begins at `start` of a run, some MiB of the run is another."""
    for index in range(start // MIB, (start + nbytes - 1) // MIB + 1):
        if not same[index]:
            yield max(0, index * MIB - start), min(nbytes, index * MIB + MIB - start)
