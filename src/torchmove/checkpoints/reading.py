"""Read a pickle without running it: the stack and memo of weights-only loading, filled with stand-ins.

Weights-only loading runs no foreign code either, but a file can make it do much work: allocate a `bytearray` of any
size, hash a key for hours, swap the bytes of a whole big-endian file. Here no object is created and no tensor data is
read, so the cost is that of the pickle alone, and the Budget limits it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from torch.serialization import get_safe_globals

from torchmove.checkpoints.archive import Archive, Record, names
from torchmove.checkpoints.kinds import refuse_other_zip
from torchmove.checkpoints.makers import Keys, ReduceContext, made, named, stored, weight
from torchmove.checkpoints.opcodes import GET, PUT, TEXT, opcodes_of
from torchmove.checkpoints.source import Budget, Source, Unfit
from torchmove.checkpoints.values import LONGEST_PLACE, Dict, PersistentStorage, Reduced, SetItems, ShortText

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

    def __init__(self, source: Source, budget: Budget | None = None) -> None:
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
