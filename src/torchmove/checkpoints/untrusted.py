"""A checkpoint file that may be anything: refusals, reading its bytes and JSON, and a budget for the work it may cause.

Ordinary files need work in proportion to their length. A malicious file is short and causes endless work: it refers to
one dict from everywhere, calls a function on it again and again, or has keys with equal hashes. So the readers and the
walk spend units of one Budget; when it is used up, the file is refused (R067). A unit is about
a third of a microsecond, or eight bytes of memory:

- a step of a pickle: 1, and more for what it makes (`unpickling.py`): a list 16, a call 40, a copied text its length;
- a call: what its arguments hold, since it may go through all of that (`pickled_objects.weight`);
- a key: its parts, and each occupied place of the hash table that it meets (`pickled_objects.py`);
- a listed tensor: 32, its dimensions, and the length of its path (`inspecting.py`);
- a skipped bracket of JSON: 64; the description of a tensor: 64 (here, and in `safetensors.py`);
- a record of the zip: 64 (`archive.py`).

A tensor of a state_dict takes at least 80 bytes of pickle, mostly 150, which grants 640 to 1200 units; about 250 are
spent.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from torchmove.errors import CheckpointRefused
from torchmove.planning.plan import Refusal

# The remedy, where the reason does not have a more specific one.
_REMEDIES = {
    "R060": "give a device such as cpu or cuda:0",
    "R061": "check the path, its permissions and the free space on the disk",
    "R062": "give a file of torch.save, a .safetensors file, or the index of a sharded checkpoint",
    "R063": "load it with the torch function for its format, and torch.save the state_dict",
    "R064": "save a state_dict instead; or, if you trust the file, call torch.serialization.add_safe_globals in Python",
    "R065": "copy or download the file again; it is damaged",
    "R066": "copy or download the file again, and do not load this one",
    "R067": "do not load this file unless you trust its author",
    "R068": "copy or download the index and all files it names into one folder",
    "R069": "choose another path",
    "R070": "use the checkpoint as it is",
    "R071": "load it on the machine where it was saved, and torch.save its state_dict",
    "R072": "try again while no other process writes to the file; if it fails again, check the disk and the memory",
    "R073": "give a file name for a file, or a folder name for a folder",
}


class Unfit(Exception):
    """One reason to refuse a file, without the file's name. `inside` says where in the file, if known."""

    def __init__(self, code: str, why: str, remedy: str = "", *, inside: str = "") -> None:
        super().__init__(why)
        self.code, self.why, self.remedy, self.inside = code, why, remedy or _REMEDIES[code], inside


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise errors of the block as CheckpointRefused with the name of this file."""
    try:
        yield
    except Unfit as unfit:
        raise refused(path, unfit) from None
    except OSError as error:
        raise refused(path, Unfit("R061", error.strerror or type(error).__name__)) from error
    except (MemoryError, RecursionError) as error:
        raise refused(path, Unfit("R067", "reading it takes more memory or stack than available")) from error


def refused(path: str | os.PathLike[str], unfit: Unfit) -> CheckpointRefused:
    where = f"{in_a_line(os.fspath(path))} {unfit.inside}".rstrip()
    return CheckpointRefused([Refusal(unfit.code, where, in_a_line(unfit.why), unfit.remedy)])


def in_a_line(text: str, most: int = 300) -> str:
    """The text, cut and with control characters escaped, since names in a file are untrusted."""
    clean = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[: most + 1])
    return clean if len(clean) <= most else f"{clean[:most]}..."


CHUNK_BYTES = 4 << 20
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # to open a pipe; Windows has no such files


class Stamp(NamedTuple):
    """Identity, size and modification time of a file, which change when it is written to."""

    device: int
    number: int
    nbytes: int
    modified_ns: int


class InputFile:
    """A regular file, open for reading."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            # Opening a device can have side effects, and opening a pipe without a writer would block.
            _ordinary(os.stat(self.path))
            descriptor = os.open(self.path, os.O_RDONLY | NO_WAIT)
        except ValueError:
            raise Unfit("R061", "not a valid file name") from None
        self._file: IO[bytes] = os.fdopen(descriptor, "rb", buffering=0)
        try:
            _ordinary(os.fstat(descriptor))
            self.stamp = self.stamp_now()
            self.mode = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
        except BaseException:
            self._file.close()
            raise
        self.nbytes = self.stamp.nbytes

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def stamp_now(self) -> Stamp:
        found = os.fstat(self._file.fileno())
        return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Exactly these bytes; never allocates more memory than the file's size."""
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise Unfit("R065", "the file is truncated")
        self._file.seek(offset)
        pieces = []
        while nbytes:
            piece = self._file.read(nbytes)
            if not piece:
                raise Unfit("R065", "the file was truncated while it was read")
            pieces.append(piece)
            nbytes -= len(piece)
        return b"".join(pieces)

    def pieces(self, offset: int, nbytes: int) -> Iterator[bytes]:
        """These bytes, a few MiB at a time."""
        for at in range(offset, offset + nbytes, CHUNK_BYTES):
            yield self.read(at, min(CHUNK_BYTES, offset + nbytes - at))

    def checksum(self, offset: int, nbytes: int) -> int:
        checksum = 0
        for piece in self.pieces(offset, nbytes):
            checksum = zlib.crc32(piece, checksum)
        return checksum


def _ordinary(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Unfit("R061", "not a regular file")


_FIXED_UNITS = 1_000_000
_UNITS_PER_BYTE = 8
# For one file: 2 GB of memory, or somewhat more than a minute. 300 000 tensors take a third of it.
_MOST_UNITS = 250_000_000


class Budget:
    """The work that reading a checkpoint may still take."""

    def __init__(self, nbytes: int = 0) -> None:
        self.left = _FIXED_UNITS + _worth(nbytes)
        self._granted: set[tuple[int, int, int]] = set()

    def grant(self, source: InputFile, offset: int, nbytes: int) -> None:
        """Allow more work for a part of a file that describes tensors; once per file, whatever its names."""
        part = (source.stamp.device, source.stamp.number, offset)
        if part not in self._granted:
            self._granted.add(part)
            self.left += _worth(nbytes)

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            self.refuse()

    def refuse(self) -> None:
        raise Unfit("R067", "reading it takes far more work than a checkpoint of its size; it may be malicious")


def _worth(nbytes: int) -> int:
    return min(_UNITS_PER_BYTE * nbytes, _MOST_UNITS)


# ---------------------------------------------------------------- JSON


_BLANK = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[-+.\w]+")
_INNER = re.compile(r'["\[\]{}]')
_CLOSING = {"[": "]", "{": "}"}


class JsonText:
    """A JSON text and the position in it. `what` names it in a refusal."""

    def __init__(self, raw: bytes, what: str, budget: Budget) -> None:
        self._what, self._budget, self._at = what, budget, 0
        with self._checked():
            self._text = raw.decode("utf-8")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, RecursionError) as error:
            raise Unfit("R065", f"{self._what} is not valid JSON: {in_a_line(str(error), 80)}") from None

    def members(self) -> Iterator[str]:
        """Each key of the next object. The caller must read or skip its value before the next key."""
        keys: set[str] = set()
        self._take("{")
        more = self.next() != "}"
        while more:
            key = self.string()
            if key in keys:
                self._invalid("duplicate key")
            keys.add(key)
            self._take(":")
            yield key
            more = self.next() == ","
            if more:
                self._take(",")
        self._take("}")

    def next(self) -> str:
        """The first character of the next value; empty at the end."""
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at
        return self._text[self._at : self._at + 1]

    def string(self) -> str:
        self._take('"')
        with self._checked():
            found, end = json.decoder.scanstring(self._text, self._at)  # type: ignore[attr-defined]
        self._budget.spend(8 + ((end - self._at) >> 4))
        self._at = end
        return str(found)

    def flat(self, most: int) -> Any:
        """An object without nested objects and without "}" in its strings, of at most `most` characters; else None."""
        end = self._text.find("}", self._at, self._at + most) + 1 if self.next() == "{" else 0
        if not end:
            return None
        begin, self._at = self._at, end
        with self._checked():
            return _DECODER.decode(self._text[begin:end])

    def skip(self) -> str:
        """Skip the next value; returns its first characters."""
        first, begin, open_ones = self.next(), self._at, []
        if first in _CLOSING:
            self._at += 1
            open_ones.append(_CLOSING[first])
        elif first == '"':
            self.string()
        else:
            scalar = _SCALAR.match(self._text, self._at)
            self._at = scalar.end() if scalar else self._invalid("a value is missing")
        while open_ones:
            self._skip_one(open_ones)
        return self._text[begin : min(self._at, begin + 100)]

    def _skip_one(self, open_ones: list[str]) -> None:
        found = _INNER.search(self._text, self._at)
        letter = found[0] if found else self._invalid("it is truncated")
        self._at = found.start() if found else self._at
        if letter == '"':
            self.string()
            return
        self._at += 1
        self._budget.spend(64)
        if letter in _CLOSING:
            open_ones.append(_CLOSING[letter])
        elif open_ones.pop() != letter:
            self._invalid("unbalanced brackets")

    def end(self) -> None:
        if self.next():
            self._invalid("something follows it")

    def _take(self, letter: str) -> None:
        if self.next() != letter:
            self._invalid(f"{letter!r} is missing at {self._at}")
        self._at += 1

    def _invalid(self, why: str) -> Any:
        with self._checked():
            raise ValueError(why)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
