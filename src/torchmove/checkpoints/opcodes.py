"""The steps of a pickle, one after the other, and where each is in it: those that weights-only loading knows."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Collection, Iterator
from functools import partial
from struct import Struct, error, pack
from typing import Any, NamedTuple

from torchmove.checkpoints.source import Unfit


class Step(NamedTuple):
    code: int
    argument: Any
    start: int
    end: int


_make = partial(tuple.__new__, Step)  # the same from a tuple, and cheaper: a checkpoint has millions
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
_MOVED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # what Python 2, and so protocol 2, calls them


def steps(pickled: bytes) -> Iterator[Step]:
    """Every step up to the last one."""
    at, bare, fixed, step = 0, _BARE, _FIXED, _make
    try:
        while True:
            code = pickled[at]
            if code in bare:
                yield step((code, None, at, at + 1))
                if code == _STOP:
                    return
                at += 1
            elif code in fixed:
                form = fixed[code]
                end = at + 1 + form.size
                yield step((code, form.unpack_from(pickled, at + 1)[0], at, end))
                at = end
            else:
                longer = _longer(code, pickled, at)
                yield longer
                at = longer.end
    except (IndexError, error):
        raise Unfit("R065", "its pickle ends in the middle") from None


def _longer(code: int, pickled: bytes, at: int) -> Step:
    if code in _COUNTED:
        form = _COUNTED[code]
        begin = at + 1 + form.size
        end = begin + form.unpack_from(pickled, at + 1)[0]
        if end > len(pickled):
            raise IndexError
        return Step(code, _read(code, pickled[begin:end]), at, end)
    if code == _GLOBAL:
        return _global(pickled, at)
    raise Unfit("R064", _unknown(code, pickled), "torch.save it again, without pickle_protocol=")


def _read(code: int, raw: bytes) -> str | int:
    if code == _LONG:
        return pickle.decode_long(raw)
    try:
        return raw.decode("utf-8", "surrogatepass" if code == pickle.BINUNICODE[0] else "strict")
    except UnicodeDecodeError:
        raise Unfit("R065", "a text in its pickle is not UTF-8") from None


def _global(pickled: bytes, at: int) -> Step:
    middle = pickled.find(b"\n", at)
    end = pickled.find(b"\n", middle + 1)
    if middle < 0 or end < 0:
        raise IndexError
    try:
        module, name = pickled[at + 1 : middle].decode(), pickled[middle + 1 : end].decode()
    except UnicodeDecodeError:
        raise Unfit("R065", "a name in its pickle is not UTF-8") from None
    return Step(_GLOBAL, f"{_MOVED.get(module, module)}.{name}", at, end + 1)


def _unknown(code: int, pickled: bytes) -> str:
    known = next((op for op in pickletools.opcodes if op.code == chr(code)), None)
    if known is None:
        return f"its pickle has a step {code} that no pickle has"
    protocol = pickled[1] if pickled[:1] == pickle.PROTO else 0
    return f"its pickle, of protocol {protocol}, has a step {known.name}, which weights-only loading does not know"


def rewritten(pickled: bytes, places: Collection[int], text: str) -> bytes:
    """The pickle with `text` at each of the places, which are where a text is pushed."""
    said = text.encode()
    new = pickle.BINUNICODE + pack("<I", len(said)) + said
    return b"".join(_pieces(pickled, frozenset(places), new))


def _pieces(pickled: bytes, places: frozenset[int], new: bytes) -> Iterator[bytes]:
    forgotten: dict[int, bytes] = {}  # what the memo should hold and does not, with the step that makes it remembered
    copied, before = 0, Step(0, None, 0, 0)
    for step in steps(pickled):
        placed, remembers = before.start in places and before.code in TEXT, step.code in PUT
        if step.start in places:
            yield pickled[copied : step.start] + new
            copied = step.end
        elif placed and remembers:
            forgotten[step.argument] = pickled[before.start : step.end]
            yield pickled[copied : step.start]
            copied = step.end
        elif remembers:
            forgotten.pop(step.argument, None)
        elif step.code in GET and step.argument in forgotten:
            yield pickled[copied : step.start] + forgotten.pop(step.argument)
            copied = step.end
        before = step
    yield pickled[copied:]
