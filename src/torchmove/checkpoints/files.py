"""Reading a file that may be anything: an ordinary one, opened once, read in pieces that are known to be there."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple

from torchmove.checkpoints.refusing import Unfit

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
