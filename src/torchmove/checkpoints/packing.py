"""Writing the zip as torch.save writes it, byte for byte: stored records, each beginning at an aligned place.

The place is reached by a field of filling in the record's header. Sizes and checksum follow the data, and their 64-bit
forms are used from 4 GiB on. A file that torch.save wrote, packed again from its records, is the same file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from struct import pack
from typing import IO

from torchmove.checkpoints.archive import (
    CENTRAL,
    CENTRAL_MARK,
    DESCRIBED,
    DESCRIPTOR_MARK,
    END,
    END64,
    END64_MARK,
    END_MARK,
    FULL16,
    FULL32,
    LOCAL,
    LOCAL_MARK,
    LOCATOR,
    LOCATOR_MARK,
    UTF8,
    WIDE,
)

_MADE_BY = (0x31E, 45)  # the versions that torch's writer names in the end


class Packer:
    """Writes records into an open, empty file, and the directory after them."""

    def __init__(self, file: IO[bytes], folder: str, alignment: int) -> None:
        self._file, self._folder, self._alignment = file, folder, alignment
        self._at = 0
        self._directory: list[bytes] = []

    def write(self, name: str, nbytes: int, pieces: Iterable[bytes]) -> int:
        """Writes a record and returns its checksum."""
        raw = f"{self._folder}/{name}".encode()
        begin, flags = self._at, UTF8 | (DESCRIBED if nbytes else 0)
        self._put(self._header(raw, nbytes, flags))
        checksum = 0
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
            self._put(piece)
        if nbytes:
            sizes = "<4sIQQ" if max(nbytes, begin) >= FULL32 else "<4sIII"
            self._put(pack(sizes, DESCRIPTOR_MARK, checksum, nbytes, nbytes))
        self._directory.append(_listed(raw, flags, checksum, nbytes, begin))
        return checksum

    def finish(self) -> None:
        begin, directory, count = self._at, b"".join(self._directory), len(self._directory)
        self._put(directory)
        end = self._at
        self._put(END64.pack(END64_MARK, END64.size - 12, *_MADE_BY, 0, 0, count, count, len(directory), begin))
        self._put(LOCATOR.pack(LOCATOR_MARK, 0, end, 1))
        short = (min(count, FULL16), min(count, FULL16), min(len(directory), FULL32), min(begin, FULL32))
        self._put(END.pack(END_MARK, 0, 0, *short, 0))

    def _put(self, content: bytes) -> None:
        self._file.write(content)
        self._at += len(content)

    def _header(self, raw: bytes, nbytes: int, flags: int) -> bytes:
        # The second size is written later, with the descriptor.
        wide = _wide((nbytes, 0) if nbytes >= FULL32 else (), self._at)
        filling = -(self._at + LOCAL.size + len(raw) + len(wide) + 4) % self._alignment
        extra = wide + pack("<2sH", b"FB", filling) + b"Z" * filling
        return LOCAL.pack(LOCAL_MARK, 0, flags, 0, 0, 0, 0, 0, 0, len(raw), len(extra)) + raw + extra


def _listed(raw: bytes, flags: int, checksum: int, nbytes: int, begin: int) -> bytes:
    extra = _wide((nbytes, nbytes) if nbytes >= FULL32 else (), begin)
    size, place = min(nbytes, FULL32), min(begin, FULL32)
    fields = (0, 0, flags, 0, 0, 0, checksum, size, size, len(raw), len(extra), 0, 0, 0, 0, place)
    return CENTRAL.pack(CENTRAL_MARK, *fields) + raw + extra


def _wide(sizes: tuple[int, ...], place: int) -> bytes:
    values = (*sizes, *((place,) if place >= FULL32 else ()))
    return pack(f"<HH{len(values)}Q", WIDE, 8 * len(values), *values) if values else b""
