"""Interpret the pickle of a file of torch.save without running it; and write it again with other device names.

The stack and memo of weights-only loading are filled with stand-ins. Weights-only loading runs no foreign code either,
but a file can make it do much work: allocate a `bytearray` of any size, hash a key for hours, swap the bytes of a whole
big-endian file. Here no object is created and no tensor data is read, so the cost is that of the pickle alone, and the
Budget limits it.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from struct import Struct, error, pack
from typing import Any, NamedTuple

from torch.serialization import get_safe_globals

from torchmove.checkpoints.archive import Archive, Record, names
from torchmove.checkpoints.file_kinds import refuse_other_zip
from torchmove.checkpoints.pickled_objects import (
    LONGEST_PLACE,
    Dict,
    Keys,
    PersistentStorage,
    ReduceContext,
    Reduced,
    SetItems,
    ShortText,
    made,
    named,
    stored,
    weight,
)
from torchmove.checkpoints.untrusted import Budget, InputFile, Unfit

# ---------------------------------------------------------------- opcodes


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


# ---------------------------------------------------------------- stack and memo


# What an opcode costs: 1, or more if it allocates much memory for each byte of the pickle.
_COSTS = [1] * 256
for _units, _codes in (
    (8, (pickle.MARK, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.BINPUT, pickle.LONG_BINPUT)),
    (16, (pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.GLOBAL)),
    (40, (pickle.REDUCE, pickle.NEWOBJ, pickle.BINPERSID)),
):
    for _code in _codes:
        _COSTS[_code[0]] = _units


class Reading:
    """The contents of a pickle: its value, its storages by key, and each text in it that is a storage's device."""

    def __init__(self, pickled: bytes, records: Mapping[str, Record], budget: Budget | None = None) -> None:
        self.budget = Budget(len(pickled)) if budget is None else budget
        self.storages: dict[str, PersistentStorage] = {}
        self.places: list[ShortText] = []
        self._records = records
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._allowed = {_name(each) for each in get_safe_globals()}
        self._keys = Keys(self.budget)
        self._making = ReduceContext(self.budget, self._keys, self.places.append)
        self.value = self._read(pickled)

    def _read(self, pickled: bytes) -> Any:
        budget, costs = self.budget, _COSTS
        try:
            for code, argument, start, _ in opcodes_of(pickled):
                budget.left -= costs[code]
                if budget.left < 0:
                    budget.refuse()
                if code in PUT:
                    self._keys.remember(self._memo, argument, self._stack[-1])
                elif code in TEXT:
                    self._push_text(argument, start)
                elif code in GET:
                    self._get(argument, start)
                elif code in _PUSHED:
                    self._stack.append(argument)
                else:
                    _ACTIONS[code](self, argument)
            return self._stack.pop()
        except (IndexError, KeyError, TypeError, ValueError):
            raise Unfit("R065", "the opcodes of its pickle are inconsistent") from None

    # -------------------------------------------------------------- opcodes

    def _push_text(self, text: str, start: int) -> None:
        self.budget.spend(8 + (len(text) >> 4))
        if len(text) > LONGEST_PLACE:
            self._stack.append(text)  # not a device name, so its position is not needed
            return
        short = ShortText(text)
        short.start = start
        self._stack.append(short)

    def _get(self, index: int, start: int) -> None:
        value = self._memo[index]
        if type(value) is ShortText:
            self._push_text(value, start)
        else:
            self._stack.append(value)

    def _name(self, name: str) -> None:
        self._stack.append(named(name, self._allowed))

    def _mark(self, _: Any) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _tuple(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(tuple(items))

    def _last(self, count: int) -> None:
        items = tuple(self._stack[-count:])
        if len(items) != count:
            raise IndexError
        self._stack[-count:] = [items]

    def _append(self, _: Any) -> None:
        item = self._stack.pop()
        self._list().append(item)

    def _extend(self, _: Any) -> None:
        items = self._pop_mark()
        self._list().extend(items)

    def _list(self) -> list[Any]:
        if type(self._stack[-1]) is not list:
            raise TypeError
        found: list[Any] = self._stack[-1]
        return found

    def _set(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._keys.put(self._dict(), key, value)

    def _update(self, _: Any) -> None:
        items = self._pop_mark()
        target = self._dict()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._keys.put(target, key, value)

    def _dict(self) -> dict[Any, Any]:
        if type(self._stack[-1]) not in (dict, Dict):
            raise TypeError
        found: dict[Any, Any] = self._stack[-1]
        return found

    def _make(self, _: Any) -> None:
        arguments, maker = self._stack.pop(), self._stack.pop()
        self._stack.append(made(maker, arguments, self._making))

    def _build(self, _: Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Dict) and isinstance(state, dict):
            self._keys.fill(target.state, state)
        elif isinstance(target, Reduced):
            target.state = state
        else:
            raise TypeError

    def _push_storage(self, _: Any) -> None:
        identity = self._stack.pop()
        if not isinstance(identity, tuple) or len(identity) != 5:
            raise Unfit("R065", "its pickle has a persistent id that is not a storage")
        self.budget.spend(weight(identity))
        storage, known = stored(identity), self.storages.get(str(identity[2]))
        if known is None:
            self._add_storage(storage)
        elif (known.dtype, known.nbytes, known.location) != (storage.dtype, storage.nbytes, storage.location):
            raise Unfit("R066", f"storage {known.key!r} is described in two ways")
        self._stack.append(known or storage)
        self.places.append(identity[3])

    def _add_storage(self, storage: PersistentStorage) -> None:
        record = self._records.get(f"data/{storage.key}")
        if record is None or record.nbytes != storage.nbytes:
            has = "is missing" if record is None else f"has {record.nbytes} bytes"
            raise Unfit("R066", f"storage {storage.key!r} should have {storage.nbytes} bytes, but {has}")
        self.storages[storage.key] = storage


_PUSHED = {code[0] for code in (pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.BINFLOAT, pickle.LONG1)}
_ACTIONS: dict[int, Callable[[Reading, Any], object]] = {
    pickle.PROTO[0]: lambda _reading, _: None,
    pickle.STOP[0]: lambda _reading, _: None,
    pickle.NONE[0]: lambda reading, _: reading._stack.append(None),
    pickle.NEWTRUE[0]: lambda reading, _: reading._stack.append(True),
    pickle.NEWFALSE[0]: lambda reading, _: reading._stack.append(False),
    pickle.EMPTY_TUPLE[0]: lambda reading, _: reading._stack.append(()),
    pickle.EMPTY_LIST[0]: lambda reading, _: reading._stack.append([]),
    pickle.EMPTY_DICT[0]: lambda reading, _: reading._stack.append({}),
    pickle.EMPTY_SET[0]: lambda reading, _: reading._stack.append(SetItems()),
    pickle.TUPLE[0]: Reading._tuple,
    pickle.TUPLE1[0]: lambda reading, _: reading._last(1),
    pickle.TUPLE2[0]: lambda reading, _: reading._last(2),
    pickle.TUPLE3[0]: lambda reading, _: reading._last(3),
    pickle.MARK[0]: Reading._mark,
    pickle.GLOBAL[0]: Reading._name,
    pickle.APPEND[0]: Reading._append,
    pickle.APPENDS[0]: Reading._extend,
    pickle.SETITEM[0]: Reading._set,
    pickle.SETITEMS[0]: Reading._update,
    pickle.REDUCE[0]: Reading._make,
    pickle.NEWOBJ[0]: Reading._make,
    pickle.BUILD[0]: Reading._build,
    pickle.BINPERSID[0]: Reading._push_storage,
}


def _name(allowed: Any) -> str:
    """The name in a pickle of something that the user allowed by add_safe_globals."""
    return str(allowed[1]) if isinstance(allowed, tuple) else f"{allowed.__module__}.{allowed.__qualname__}"


PICKLE = "data.pkl"
_MOST_PICKLE_BYTES = 64 << 20


class TorchFile:
    """An open file of torch.save."""

    def __init__(self, source: InputFile, budget: Budget | None = None) -> None:
        refuse_other_zip(names(source))
        self.source = source
        self.archive = Archive(source, budget)
        self.pickled = self.archive.read(PICKLE, _MOST_PICKLE_BYTES)
        self.archive.budget.grant(source, self.archive.records[PICKLE].offset, len(self.pickled))
        self.reading = Reading(self.pickled, self.archive.records, self.archive.budget)
        self.alignment = self._alignment()
        self.byteorder = self._byteorder()

    @property
    def unused_bytes(self) -> int:
        used = {f"data/{key}" for key in self.reading.storages}
        records = self.archive.records.values()
        return sum(record.nbytes for record in records if record.name.startswith("data/") and record.name not in used)

    def _alignment(self) -> int:
        alignment = self._small(".storage_alignment", b"64")
        if not alignment.isdigit() or not 1 <= int(alignment) <= 1 << 14:
            raise Unfit("R065", f"invalid storage alignment {alignment!r}")
        return int(alignment)

    def _byteorder(self) -> str:
        order = self._small("byteorder", b"little")
        if order not in (b"little", b"big"):
            raise Unfit("R065", f"invalid byte order {order!r}")
        return order.decode()

    def _small(self, name: str, default: bytes) -> bytes:
        return self.archive.read(name, 16) if name in self.archive.records else default
