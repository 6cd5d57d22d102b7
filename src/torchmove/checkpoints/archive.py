"""The zip that torch.save writes: read strictly, and written byte for byte as torch.save writes it.

Records are stored without compression, each at an aligned place, which a filler field in the header reaches. Sizes and
checksum follow the data, in 64-bit form from 4 GiB on. A file of torch.save, packed again from its records, is the same
file. What is read is all that torch's own reader can see in the file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from struct import Struct, pack
from typing import IO, NamedTuple

from torchmove.checkpoints.untrusted import Budget, InputFile, Unfit

LOCAL = Struct("<4s5H3I2H")
CENTRAL = Struct("<4s6H3I5H2I")
END = Struct("<4s4H2IH")
END64 = Struct("<4sQ2H2I4Q")
LOCATOR = Struct("<4sIQI")
LOCAL_MARK, CENTRAL_MARK, END_MARK = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64_MARK, LOCATOR_MARK, DESCRIPTOR_MARK = b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF  # the value is in the 64-bit field
WIDE = 1  # the extra field with the 64-bit values
DESCRIBED, UTF8 = 0x8, 0x800  # flags: sizes follow the data; names are UTF-8
_MOST_DIRECTORY_BYTES = 64 << 20
_NAME = re.compile(r"[^/\\\0]+(/[^/\\\0]+)+")


class Record(NamedTuple):
    """A record of the archive; its name is without the folder. `checksum` 0: torch computed none."""

    name: str
    offset: int
    nbytes: int
    checksum: int


class _Entry(NamedTuple):
    """The directory's entry for a record."""

    name: str
    header: int
    nbytes: int
    checksum: int


class Archive:
    """The records of a file of torch.save, in the file's order."""

    def __init__(self, source: InputFile, budget: Budget | None = None) -> None:
        self.source, self.budget = source, budget or Budget()
        start, nbytes, count = _directory(source)
        self.budget.grant(source, start, nbytes)
        entries = sorted(_entries(source.read(start, nbytes), count), key=lambda entry: entry.header)
        self.folder = entries[0].name.split("/")[0] if entries else ""
        self.records: dict[str, Record] = {}
        self._fill(entries, start)

    def _fill(self, entries: list[_Entry], end: int) -> None:
        reached, taken = 0, set()
        for entry in entries:
            self.budget.spend(64)
            name = entry.name.removeprefix(f"{self.folder}/")
            # torch ignores case when it looks up names.
            if name == entry.name or entry.name.lower() in taken:
                raise Unfit("R065", f"record {entry.name!r} is outside of the archive's folder, or a duplicate")
            offset = _data_offset(self.source, entry)
            if entry.header < reached or offset + entry.nbytes > end:
                raise Unfit("R065", f"record {entry.name!r} overlaps another one")
            reached = offset + entry.nbytes
            taken.add(entry.name.lower())
            self.records[name] = Record(name, offset, entry.nbytes, entry.checksum)

    def read(self, name: str, most: int) -> bytes:
        """The content of a small record, verified by its checksum."""
        record = self.records.get(name)
        if record is None:
            raise Unfit("R062", f"a zip without {name}, so not written by torch.save")
        if record.nbytes > most:
            raise Unfit("R067", f"{name} has {record.nbytes} bytes; the limit is {most}")
        content = self.source.read(record.offset, record.nbytes)
        check(record, self.source.checksum(record.offset, record.nbytes))
        return content


def names(source: InputFile) -> list[str]:
    """The names in the directory, unchecked: they tell what kind of zip it is."""
    start, nbytes, count = _directory(source)
    directory, at, found = source.read(start, nbytes), 0, []
    for _ in range(count):
        if at + CENTRAL.size > nbytes:
            break
        *_, named, extra, comment, _, _, _, _ = CENTRAL.unpack_from(directory, at)
        at += CENTRAL.size
        found.append(directory[at : at + named].decode("utf-8", "replace"))
        at += named + extra + comment
    return found


def check(record: Record, checksum: int) -> None:
    if record.checksum not in (0, checksum):
        raise Unfit("R065", f"the checksum of record {record.name!r} is wrong")


def _directory(source: InputFile) -> tuple[int, int, int]:
    """The directory's offset, size, and number of entries."""
    if source.nbytes < END.size:
        raise Unfit("R065", "the file is truncated: too short for a zip")
    at = source.nbytes - END.size
    mark, *_, count, nbytes, start, comment = END.unpack(source.read(at, END.size))
    if mark != END_MARK or comment:
        raise Unfit("R065", "the file is truncated, or something follows the zip's end")
    locator = source.read(at - LOCATOR.size, LOCATOR.size) if at >= LOCATOR.size else b""
    if locator.startswith(LOCATOR_MARK):
        at -= LOCATOR.size + END64.size
        mark, _, _, _, _, _, _, count, nbytes, start = END64.unpack(source.read(max(at, 0), END64.size))
        if mark != END64_MARK or LOCATOR.unpack(locator)[2] != at:
            raise Unfit("R065", "the zip's two end records differ")
    if start + nbytes != at:
        raise Unfit("R065", "the zip's directory is not where its end record says")
    if nbytes > _MOST_DIRECTORY_BYTES:
        raise Unfit("R067", f"the zip's directory has {nbytes} bytes; the limit is {_MOST_DIRECTORY_BYTES}")
    return start, nbytes, count


def _entries(directory: bytes, count: int) -> Iterator[_Entry]:
    at = 0
    for _ in range(count):
        if at + CENTRAL.size > len(directory):
            raise Unfit("R065", "the zip's directory is truncated")
        (mark, _, _, flags, method, _, _, checksum, packed, nbytes, named, extra, comment, *_, header) = (
            CENTRAL.unpack_from(directory, at)
        )
        at += CENTRAL.size
        name = _name(directory[at : at + named])
        if mark != CENTRAL_MARK or comment:
            raise Unfit("R065", "the zip's directory is invalid")
        nbytes, packed, header = _widened(directory[at + named : at + named + extra], nbytes, packed, header)
        _stored(name, flags, method)
        if packed != nbytes:
            raise Unfit("R065", f"record {name!r} has two sizes")
        yield _Entry(name, header, nbytes, checksum)
        at += named + extra
    if at != len(directory):
        raise Unfit("R065", "the zip's directory is longer than it says")


def _stored(name: str, flags: int, method: int) -> None:
    if method or flags & ~(DESCRIBED | UTF8):
        how = "encrypted" if flags & 1 else "compressed" if method else "not stored"
        raise Unfit("R065", f"record {name!r} is {how}; torch.save stores records uncompressed")


def _name(raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        name = ""
    if not _NAME.fullmatch(name) or {".", ".."} & set(name.split("/")):
        raise Unfit("R065", f"a record is named {raw[:80]!r}, which is outside of the archive's folder or invalid")
    return name


def _widened(extra: bytes, nbytes: int, packed: int, header: int) -> tuple[int, int, int]:
    """The sizes and the offset, from the 64-bit field where the 32-bit value is FULL32."""
    values = [nbytes, packed, header]
    wanted = [index for index, value in enumerate(values) if value == FULL32]
    fields = _fields(extra).get(WIDE, b"") if wanted else b""
    for place, index in enumerate(wanted):
        field = fields[place * 8 : place * 8 + 8]
        if len(field) != 8:
            raise Unfit("R065", "the zip's directory lacks a 64-bit size")
        values[index] = int.from_bytes(field, "little")
    return values[0], values[1], values[2]


def _fields(extra: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at + 4 <= len(extra):
        kind, nbytes = (int.from_bytes(extra[at + i : at + i + 2], "little") for i in (0, 2))
        found[kind] = extra[at + 4 : at + 4 + nbytes]
        at += 4 + nbytes
    return found


def _data_offset(source: InputFile, entry: _Entry) -> int:
    """Where the data begins: after the record's own header, which must agree with the directory."""
    header = source.read(entry.header, LOCAL.size)
    mark, _, flags, method, _, _, _, packed, nbytes, named, extra = LOCAL.unpack(header)
    if mark != LOCAL_MARK or source.read(entry.header + LOCAL.size, named) != entry.name.encode():
        raise Unfit("R065", f"record {entry.name!r} is not where the directory says")
    _stored(entry.name, flags, method)
    for size in (packed, nbytes):
        if size not in (entry.nbytes, FULL32) and not (flags & DESCRIBED and size == 0):
            raise Unfit("R065", f"record {entry.name!r} has two sizes")
    return entry.header + LOCAL.size + int(named) + int(extra)


_MADE_BY = (0x31E, 45)  # the versions that torch's writer puts into the end record


class Packer:
    """Writes records into an open, empty file, and the directory after them."""

    def __init__(self, file: IO[bytes], folder: str, alignment: int) -> None:
        self._file, self._folder, self._alignment = file, folder, alignment
        self._at = 0
        self._directory: list[bytes] = []

    def write(self, name: str, nbytes: int, pieces: Iterable[bytes]) -> int:
        """Write a record and return its checksum."""
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
        # The second size is in the descriptor, which follows the data.
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
