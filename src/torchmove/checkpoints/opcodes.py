"""The steps of a pickle, and the same pickle with some of its texts replaced: no other byte changes.

A pickle writes a text once and refers to it where it is needed again, so a storage's device and a text of the user may
be one and the same. Each step that places a tensor is replaced by the new text, which is not remembered; where the old
one was remembered there, the first step that still needs it writes it again.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Collection, Iterator
from functools import partial
from struct import Struct, error, pack
from typing import Any, NamedTuple

from torchmove.checkpoints.source import Unfit


class Opcode(NamedTuple):
    """One opcode of a pickle: its code, its argument, and its position."""

    code: int
    argument: Any
    start: int
    end: int


_make = partial(tuple.__new__, Opcode)  # Opcode(*values) from a tuple, and faster: a checkpoint has millions
GET = {pickle.BINGET[0], pickle.LONG_BINGET[0]}
PUT = {pickle.BINPUT[0], pickle.LONG_BINPUT[0]}
TEXT = {pickle.BINUNICODE[0], pickle.SHORT_BINSTRING[0]}

_BARE = {
    code[0]
    for code in (
        *(pickle.MARK, pickle.STOP, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        *(pickle.EMPTY_TUPLE, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_SET),
        *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS),
        *(pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD, pickle.BINPERSID),
    )
}
_FIXED = {
    code[0]: Struct(form)
    for code, form in (
        (pickle.PROTO, "<B"),
        (pickle.BININT, "<i"),
        (pickle.BININT1, "<B"),
        (pickle.BININT2, "<H"),
        (pickle.BINFLOAT, ">d"),
        (pickle.BINGET, "<B"),
        (pickle.LONG_BINGET, "<I"),
        (pickle.BINPUT, "<B"),
        (pickle.LONG_BINPUT, "<I"),
    )
}
_COUNTED = {pickle.BINUNICODE[0]: Struct("<I"), pickle.SHORT_BINSTRING[0]: Struct("<B"), pickle.LONG1[0]: Struct("<B")}
_GLOBAL, _LONG, _STOP = pickle.GLOBAL[0], pickle.LONG1[0], pickle.STOP[0]
_MOVED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # protocol 2 uses Python 2's module names


def opcodes_of(pickled: bytes) -> Iterator[Opcode]:
    """Every opcode up to STOP."""
    at, bare, fixed, make = 0, _BARE, _FIXED, _make
    try:
        while True:
            code = pickled[at]
            if code in bare:
                yield make((code, None, at, at + 1))
                if code == _STOP:
                    return
                at += 1
            elif code in fixed:
                form = fixed[code]
                end = at + 1 + form.size
                yield make((code, form.unpack_from(pickled, at + 1)[0], at, end))
                at = end
            else:
                longer = _longer(code, pickled, at)
                yield longer
                at = longer.end
    except (IndexError, error):
        raise Unfit("R065", "its pickle is truncated") from None


def _longer(code: int, pickled: bytes, at: int) -> Opcode:
    if code in _COUNTED:
        form = _COUNTED[code]
        begin = at + 1 + form.size
        end = begin + form.unpack_from(pickled, at + 1)[0]
        if end > len(pickled):
            raise IndexError
        return Opcode(code, _read(code, pickled[begin:end]), at, end)
    if code == _GLOBAL:
        return _global(pickled, at)
    raise Unfit("R064", _unknown(code, pickled), "save it again with torch.save, without pickle_protocol=")


def _read(code: int, raw: bytes) -> str | int:
    if code == _LONG:
        return pickle.decode_long(raw)
    try:
        return raw.decode("utf-8", "surrogatepass" if code == pickle.BINUNICODE[0] else "strict")
    except UnicodeDecodeError:
        raise Unfit("R065", "a string in its pickle is not UTF-8") from None


def _global(pickled: bytes, at: int) -> Opcode:
    middle = pickled.find(b"\n", at)
    end = pickled.find(b"\n", middle + 1)
    if middle < 0 or end < 0:
        raise IndexError
    try:
        module, name = pickled[at + 1 : middle].decode(), pickled[middle + 1 : end].decode()
    except UnicodeDecodeError:
        raise Unfit("R065", "a name in its pickle is not UTF-8") from None
    return Opcode(_GLOBAL, f"{_MOVED.get(module, module)}.{name}", at, end + 1)


def _unknown(code: int, pickled: bytes) -> str:
    known = next((op for op in pickletools.opcodes if op.code == chr(code)), None)
    if known is None:
        return f"its pickle has an invalid opcode {code}"
    protocol = pickled[1] if pickled[:1] == pickle.PROTO else 0
    return (
        f"its pickle, of protocol {protocol}, has the opcode {known.name}, which weights-only loading does not support"
    )


def rewritten(pickled: bytes, places: Collection[int], text: str) -> bytes:
    """The pickle with `text` at each of the places, which are positions of opcodes that push a text."""
    encoded = text.encode()
    new = pickle.BINUNICODE + pack("<I", len(encoded)) + encoded
    return b"".join(_pieces(pickled, frozenset(places), new))


def _pieces(pickled: bytes, places: frozenset[int], new: bytes) -> Iterator[bytes]:
    forgotten: dict[int, bytes] = {}  # old texts that are no longer in the memo, with their PUT, by memo index
    copied, before = 0, Opcode(0, None, 0, 0)
    for opcode in opcodes_of(pickled):
        placed, remembers = before.start in places and before.code in TEXT, opcode.code in PUT
        if opcode.start in places:
            yield pickled[copied : opcode.start] + new
            copied = opcode.end
        elif placed and remembers:
            forgotten[opcode.argument] = pickled[before.start : opcode.end]
            yield pickled[copied : opcode.start]
            copied = opcode.end
        elif remembers:
            forgotten.pop(opcode.argument, None)
        elif opcode.code in GET and opcode.argument in forgotten:
            yield pickled[copied : opcode.start] + forgotten.pop(opcode.argument)
            copied = opcode.end
        before = opcode
    yield pickled[copied:]
