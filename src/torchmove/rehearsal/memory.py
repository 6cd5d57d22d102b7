"""What the step takes on the device: every storage, from when it is made until nobody holds it."""

from __future__ import annotations

import weakref
from collections import defaultdict

from torch import Tensor

_ROUND = 512  # what torch's allocator for CUDA hands out is a multiple of this


class Meter:
    """Keeps a log, so that afterwards, when it is known what each storage was for, the peak can be told by part."""

    def __init__(self) -> None:
        self.parts: dict[int, str] = {}  # what a storage is for, by its number in the log; others are activations
        self._log: list[tuple[int, int]] = []  # a storage's number, and by how many bytes more, or less
        self._numbers: dict[int, int] = {}  # of the living, by the storage
        self._count = 0

    def see(self, behind: Tensor, nbytes: int | None = None) -> None:
        """A tensor on the device; `nbytes` where it would be larger there."""
        storage = behind.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        number, self._count = self._count, self._count + 1
        size = _rounded(storage.nbytes() if nbytes is None else nbytes)
        self._numbers[key] = number
        self._log.append((number, size))
        weakref.finalize(storage, self._forget, key, number, size)

    def take(self, nbytes: int) -> None:
        """Room that is taken for a moment."""
        self._count += 1
        self._log += [(self._count - 1, _rounded(nbytes)), (self._count - 1, -_rounded(nbytes))]

    def _forget(self, key: int, number: int, size: int) -> None:
        self._log.append((number, -size))
        if self._numbers.get(key) == number:
            del self._numbers[key]

    @property
    def saw_any(self) -> bool:
        return bool(self._log)

    def mark(self, behind: Tensor, part: str) -> None:
        number = self._numbers.get(behind.untyped_storage()._cdata)
        if number is not None:
            self.parts[number] = part

    def peak(self) -> dict[str, int]:
        """Bytes by part, at the moment when they were most.

        The state of an optimizer counts from the beginning: what the first step makes, every later one begins with.
        """
        log = sorted(self._log, key=lambda entry: self.parts.get(entry[0]) != "optimizer" or entry[1] < 0)
        now = most = at = 0
        for index, (_, size) in enumerate(log):
            now += size
            if now > most:
                most, at = now, index
        parts: defaultdict[str, int] = defaultdict(int)
        for number, size in log[: at + 1] if most else ():
            parts[self.parts.get(number, "activations")] += size
        return {part: size for part, size in parts.items() if size}


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ROUND) * _ROUND
