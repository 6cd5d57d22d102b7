"""Reasons to refuse a checkpoint. Inner code says why; whoever knows the file adds its name, once."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from torchmove.errors import CheckpointRefused
from torchmove.planning.plan import Refusal

# What to do instead, where the reason itself does not say something better.
_REMEDIES = {
    "R060": "name a device that a checkpoint can be saved from: cpu, cuda:0",
    "R061": "look at the path, its permissions and the room on the disk",
    "R062": "name a file of torch.save, a .safetensors file, or the index of a sharded checkpoint",
    "R063": "load it with the function of torch that is for it, and torch.save the state_dict",
    "R064": "save a state_dict; or, if you trust the file, torch.serialization.add_safe_globals, in Python",
    "R065": "get the file again from where it was saved; it is not as it was written",
    "R066": "get the file again from where it was saved, and do not load this one",
    "R067": "do not load this file, unless you know who made it and why",
    "R068": "get the index again, and the files that it names, into one folder",
    "R069": "name another place",
    "R070": "use the checkpoint as it is",
    "R071": "load it yourself where it was saved, and torch.save a state_dict of it",
    "R072": "try again, while nobody writes to the file; if it stays so, the disk or the memory is faulty",
    "R073": "name a file, or for a folder a folder",
}


class Unfit(Exception):
    """One reason, not yet with the name of the file. `inside` says where in the file, if that is known."""

    def __init__(self, code: str, why: str, remedy: str = "", *, inside: str = "") -> None:
        super().__init__(why)
        self.code, self.why, self.remedy, self.inside = code, why, remedy or _REMEDIES[code], inside


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever stands in the way in here is refused under the name of this file."""
    try:
        yield
    except Unfit as unfit:
        raise refused(path, unfit) from None
    except OSError as error:
        raise refused(path, Unfit("R061", error.strerror or type(error).__name__)) from error
    except (MemoryError, RecursionError) as error:
        raise refused(path, Unfit("R067", "it asks for more memory than there is, or for too deep a stack")) from error


def refused(path: str | os.PathLike[str], unfit: Unfit) -> CheckpointRefused:
    where = f"{in_a_line(os.fspath(path))} {unfit.inside}".rstrip()
    return CheckpointRefused([Refusal(unfit.code, where, in_a_line(unfit.why), unfit.remedy)])


def in_a_line(text: str, most: int = 300) -> str:
    """Names come from outside: no line breaks, no control characters, no end of pages."""
    clean = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[: most + 1])
    return clean if len(clean) <= most else f"{clean[:most]}..."


CHUNK_BYTES = 4 << 20


class Stamp(NamedTuple):
    """By these one sees that a file has been written to."""

    device: int
    number: int
    nbytes: int
    modified_ns: int


class Source:
    """An ordinary file, open for reading."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            # Opening a device may do something already, and a pipe without a writer would wait for ever.
            _ordinary(os.stat(self.path))
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except ValueError:
            raise Unfit("R061", "no name that a file can have") from None
        self._file: IO[bytes] = os.fdopen(descriptor, "rb", buffering=0)
        try:
            _ordinary(os.fstat(descriptor))
            self.stamp = self.stamp_now()
            self.mode = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
        except BaseException:
            self._file.close()
            raise
        self.nbytes = self.stamp.nbytes

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def stamp_now(self) -> Stamp:
        found = os.fstat(self._file.fileno())
        return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Exactly these bytes; never asks for memory that the file could not fill."""
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise Unfit("R065", "it is shorter than it says: the end is missing")
        self._file.seek(offset)
        pieces = []
        while nbytes:
            piece = self._file.read(nbytes)
            if not piece:
                raise Unfit("R065", "it became shorter while it was read")
            pieces.append(piece)
            nbytes -= len(piece)
        return b"".join(pieces)

    def pieces(self, offset: int, nbytes: int) -> Iterator[bytes]:
        """The same, a few MiB at a time."""
        for at in range(offset, offset + nbytes, CHUNK_BYTES):
            yield self.read(at, min(CHUNK_BYTES, offset + nbytes - at))

    def checksum(self, offset: int, nbytes: int) -> int:
        checksum = 0
        for piece in self.pieces(offset, nbytes):
            checksum = zlib.crc32(piece, checksum)
        return checksum


def _ordinary(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Unfit("R061", "not an ordinary file")


_FIXED_UNITS = 1_000_000
_UNITS_PER_BYTE = 8
# Of one file: 2 GB of memory, or somewhat more than a minute. 300 000 tensors take a third of it.
_MOST_UNITS = 250_000_000


class Budget:
    """What is left of the work that a checkpoint may ask for."""

    def __init__(self, nbytes: int = 0) -> None:
        self.left = _FIXED_UNITS + _worth(nbytes)
        self._granted: set[tuple[int, int, int]] = set()

    def grant(self, source: Source, offset: int, nbytes: int) -> None:
        """More work, for a part of a file that describes tensors: once, by however many names the file is given."""
        part = (source.stamp.device, source.stamp.number, offset)
        if part not in self._granted:
            self._granted.add(part)
            self.left += _worth(nbytes)

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            self.refuse()

    def refuse(self) -> None:
        raise Unfit("R067", "it takes far more work to read than a checkpoint of its size: it is made to do harm")


def _worth(nbytes: int) -> int:
    return min(_UNITS_PER_BYTE * nbytes, _MOST_UNITS)
