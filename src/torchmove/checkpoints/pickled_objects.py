"""The objects of a pickle, without creating any: stand-ins for them, and what each allowed name makes of its arguments.

Lists, tuples, plain dicts, numbers, strings and dtypes are themselves; storages, tensors, globals and others have
stand-ins. Nothing is called: a name that is in no table here, and that the user has not allowed, ends the reading. Nor
is memory allocated that the file does not hold, as torch would do for `bytearray(10**12)`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from torchmove.checkpoints.untrusted import Budget, Unfit
from torchmove.surveying.paths import ATTRIBUTE, CALL, ITEM, KEY, KEYED, MEMBER, ROOT

LONGEST_PLACE = 100  # characters of a device name
PLAIN = (str, int, float, bool, complex, bytes, type(None), torch.dtype)


class ShortText(str):
    """A string short enough to name a device, and the position of the opcode that pushed it."""

    __slots__ = ("start",)
    start: int


class Global:
    """A GLOBAL: a class, function or constant, by its full name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class PickledDevice:
    """A torch.device."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"device({self.text!r})"


class PersistentStorage:
    """A storage: a record of the archive. `device` is the device of its tensors, which for XLA is not `location`."""

    __slots__ = ("device", "dtype", "key", "location", "nbytes")

    def __init__(self, key: str, dtype: torch.dtype, nbytes: int, location: str) -> None:
        self.key, self.dtype, self.nbytes, self.location, self.device = key, dtype, nbytes, location, location


class Dict(dict[Any, Any]):
    """An OrderedDict or a Counter; `state` is its attributes."""

    __slots__ = ("kind", "state")

    def __init__(self, kind: str, pairs: Any = ()) -> None:
        super().__init__(pairs)
        self.kind = kind
        self.state: dict[Any, Any] = {}


class SetItems(list[Any]):
    """A set, as a list of its items."""


class PickledView(NamedTuple):
    """A tensor's view of its storage, in elements."""

    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class PickledChild(NamedTuple):
    """A value inside another one, and the path step that leads to it."""

    how: str
    what: Any
    value: Any


class PickledTensor:
    """A tensor: a view on a storage, or a composite of its parts."""

    __slots__ = ("other", "parts", "storage", "view")

    def __init__(
        self,
        view: PickledView | None,
        storage: PersistentStorage | None,
        parts: tuple[PickledChild, ...] = (),
        other: tuple[Any, ...] = (),
    ) -> None:
        self.view, self.storage, self.parts = view, storage, parts
        self.other = other  # its other properties: class, requires_grad, conjugate bit


class Reduced:
    """An object made by REDUCE with a class that the user allows: the callable, its arguments, and the state."""

    __slots__ = ("reduced", "state")

    def __init__(self, maker: Global, arguments: Any) -> None:
        self.reduced = (maker, arguments)
        self.state: Any = None


def inside(value: Any) -> Iterator[PickledChild]:
    """The children of a value, in order."""
    if isinstance(value, dict):
        yield from _pairs(value)
        yield from attributes(value.state) if isinstance(value, Dict) else ()
    elif isinstance(value, (list, tuple)):
        how = MEMBER if isinstance(value, SetItems) else ITEM
        yield from (PickledChild(how, index, each) for index, each in enumerate(value))
    elif isinstance(value, PickledTensor):
        yield from value.parts
    elif isinstance(value, Reduced):
        yield PickledChild(CALL, "__reduce__", value.reduced)
        yield from attributes(value.state)


def _pairs(value: dict[Any, Any]) -> Iterator[PickledChild]:
    for index, (key, each) in enumerate(value.items()):
        if is_plain(key):
            yield PickledChild(ITEM, key, each)
        else:
            yield PickledChild(KEY, index, key)
            yield PickledChild(KEYED, index, each)


def attributes(state: Any) -> Iterator[PickledChild]:
    """The children of a BUILD state: a dict of attributes, a pair of dicts for __slots__, or a custom state."""
    dicts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if all(isinstance(each, Mapping) or each is None for each in dicts):
        for each in dicts:
            yield from (PickledChild(ATTRIBUTE, str(name), value) for name, value in (each or {}).items())
    else:
        yield PickledChild(CALL, "__getstate__", state)


def is_plain(key: Any) -> bool:
    return all(map(is_plain, key)) if isinstance(key, tuple) else isinstance(key, PLAIN)


def meaning(value: Any) -> str:
    """A digest of the contents of a pickle except its storages' devices: equal for equal checkpoints."""
    digest = hashlib.sha256()
    numbers: dict[int, int] = {}  # of values that can occur again, by id; all of them stay alive here
    entered = [iter([PickledChild(ROOT, "", value)])]
    while entered:
        part = next(entered[-1], None)
        if part is None:
            entered.pop()
            digest.update(b")")
            continue
        how, what, each = part
        again = not isinstance(each, PLAIN) or _is_long(each)  # a long text can occur a million times
        known = numbers.get(id(each)) if again else None
        digest.update(repr((how, what, known or _described(each))).encode("utf-8", "surrogatepass"))
        if known is None and again:
            numbers[id(each)] = len(numbers) + 1
            entered.append(inside(each))
    return digest.hexdigest()


def _is_long(value: Any) -> bool:
    return isinstance(value, (str, bytes)) and len(value) > LONGEST_PLACE


def _described(value: Any) -> Any:
    if isinstance(value, PickledTensor):
        stored = value.storage
        kept = stored and (stored.key, stored.dtype, stored.nbytes)
        return ("tensor", value.view, kept, value.other)
    if isinstance(value, PersistentStorage):
        return ("storage", value.key, value.dtype, value.nbytes)
    if isinstance(value, (Global, PickledDevice, *PLAIN)):
        return (type(value).__name__.replace("ShortText", "str"), value)
    return (getattr(value, "kind", type(value).__name__), len(value) if hasattr(value, "__len__") else 0)


_MOST_BYTES = 1 << 63  # torch's sizes are signed 64-bit integers
_MOST_DIMENSIONS = 64


def count(numbers: Any) -> tuple[int, ...]:
    """The numbers as sizes, strides or offsets; raises Unfit unless they are integers from 0 on."""
    if isinstance(numbers, (list, tuple)) and all(type(each) is int and 0 <= each < _MOST_BYTES for each in numbers):
        return tuple(numbers)
    raise Unfit("R066", "it has an invalid size, stride or offset")


def checked(storage: PersistentStorage | None, view: PickledView, other: tuple[Any, ...]) -> PickledTensor:
    """The tensor; raises Unfit unless it is inside its storage. Without a storage it is a meta tensor."""
    size, stride, (offset,) = count(view.size), count(view.stride), count([view.offset])
    if not isinstance(view.dtype, torch.dtype) or not (storage is None or isinstance(storage, PersistentStorage)):
        raise Unfit("R065", "its pickle makes a tensor from something that is not a storage")
    view = PickledView(view.dtype, offset, size, stride)
    elements = f"a tensor of shape {list(size)[:8]} and {view.dtype}"
    if len(size) != len(stride) or len(size) > _MOST_DIMENSIONS:
        raise Unfit("R066", f"a tensor of {len(size)} dimensions has {len(stride)} strides")
    if nbytes(view) >= _MOST_BYTES:
        raise Unfit("R066", f"{elements} is larger than any memory")
    if storage is not None and extent(view)[1] > storage.nbytes:
        raise Unfit("R066", f"{elements} exceeds its storage {storage.key!r} of {storage.nbytes} bytes")
    return PickledTensor(view, storage, (), other)


def nbytes(view: PickledView) -> int:
    return math.prod(view.size) * view.dtype.itemsize


def extent(view: PickledView) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the end of its last one."""
    if 0 in view.size:
        return 0, 0
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.size, view.stride, strict=True))
    return view.offset * view.dtype.itemsize, (last + 1) * view.dtype.itemsize


def used_bytes(views: Iterable[PickledView]) -> int:
    """How many bytes of a storage its views cover together: an upper bound, exact for most."""
    # Sorted, not in a set: a file can choose strides that all have the same hash.
    different, before = [], None
    for view in sorted(views, key=_shown):
        if before is None or _shown(view) != _shown(before):
            different.append(view)
        before = view
    return min(_covered(sorted(map(extent, different))), sum(map(_distinct, different)))


def _shown(view: PickledView) -> tuple[Any, ...]:
    return view.offset, view.size, view.stride, view.dtype.itemsize


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _distinct(view: PickledView) -> int:
    """Bytes of a view without the repetitions of expanded dimensions."""
    sizes = (1 if stride == 0 and size else size for size, stride in zip(view.size, view.stride, strict=True))
    return math.prod(sizes) * view.dtype.itemsize


def _covered(extents: Sequence[tuple[int, int]]) -> int:
    covered = reached = 0
    for first, end in extents:
        covered += max(0, end - max(first, reached))
        reached = max(reached, end)
    return covered


# ---------------------------------------------------------------- keys of dicts


_MOST_IN_A_KEY = 1000
_DEEPEST_KEY = 20
_SALTED = (str, bytes)
_BESIDE = 9  # a set probes this many adjacent places (LINEAR_PROBES in CPython)
_SMALLEST = 8


class Keys:
    """Inserts keys into dicts, and charges the Budget for it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._tables: dict[int, tuple[dict[Any, Any], _Table]] = {}  # of dicts whose keys may collide, by id

    def put(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        key, weight = self._hashable(key)
        if self._tables or not _is_harmless(key, len(target)):
            self._pay(target, key, weight)
        target[key] = value

    def fill(self, target: dict[Any, Any], pairs: Iterable[Any]) -> None:
        for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
            self._budget.spend(4)
            self.put(target, key, value)

    def check_members(self, members: Collection[Any]) -> None:
        """Charge for the members of a set, which is a list here, and a set when torch loads it."""
        table = _Table(self._budget, _BESIDE)
        for member in members:
            key, weight = self._hashable(member)
            if type(key) not in _SALTED:
                table.place(hash(key), weight)

    def remember(self, memo: dict[int, Any], index: int, value: Any) -> None:
        """Store in the memo of a pickle, which is a dict too."""
        if index == len(memo) and not self._tables:  # the usual case
            memo[index] = value
        else:
            self.put(memo, index, value)

    def _hashable(self, key: Any) -> tuple[Any, int]:
        """The key, and the cost of hashing it, which can be huge for nested tuples that repeat one tuple."""
        if isinstance(key, str):
            key = str(key)
        weight = 1 if type(key) is int else _weight(key)
        self._budget.spend(weight)
        return key, weight

    def _pay(self, target: dict[Any, Any], key: Any, weight: int) -> None:
        """Charge before the insertion: a table that grows inserts all of its keys again."""
        known = self._tables.get(id(target))
        if known is None:
            if _is_harmless(key, len(target)):
                return
            known = self._tables[id(target)] = target, _Table(self._budget)
            for each in target:
                known[1].place(hash(each))
        if key in target:
            known[1].find(hash(key), weight)
        else:
            known[1].place(hash(key), weight)


def _is_harmless(key: Any, count: int) -> bool:
    """Whether a key cannot be chosen to collide: its hash is salted, or it is an integer smaller than the table, which
    is its own place, so that no two such keys share a place."""
    return type(key) in _SALTED or (type(key) is int and 0 <= key < max(_SMALLEST, count + count // 2))


def _weight(key: Any) -> int:
    waiting, weight = [(key, 0)], 0
    while waiting:
        each, depth = waiting.pop()
        weight += 1 + (len(each) // 16 if isinstance(each, _SALTED) else 0)
        if weight > _MOST_IN_A_KEY or depth > _DEEPEST_KEY:
            raise Unfit("R067", "a dict key in its pickle is too large")
        if isinstance(each, tuple):
            waiting += ((inner, depth + 1) for inner in each[: _MOST_IN_A_KEY + 1])
        elif isinstance(each, (list, dict)):
            raise Unfit("R065", "its pickle has a list or dict as a dict key")
    return weight


class _Table:
    """The occupied places of one of Python's hash tables: of a dict, or with `beside`, of a set."""

    def __init__(self, budget: Budget, beside: int = 0) -> None:
        self._budget, self._beside = budget, beside
        self._hashes: list[int] = []
        self._taken = bytearray(_SMALLEST)

    def place(self, hashed: int, weight: int = 1) -> None:
        """Occupy a place for a key; the table grows when it is too full."""
        self._budget.spend(6)
        self._hashes.append(hashed)
        if 3 * len(self._hashes) > 2 * len(self._taken):
            self._taken = bytearray((4 if self._beside else 2) * len(self._taken))
            for before in self._hashes[:-1]:
                self._taken[self.find(before)] = 1
        self._taken[self.find(hashed, weight)] = 1

    def find(self, hashed: int, weight: int = 1) -> int:
        """The first free place. Each occupied one costs, and more for large keys, which take longer to compare."""
        taken, most, cost = self._taken, len(self._taken) - 1, 1 + weight // 16
        at, perturb = hashed & most, hashed & 0xFFFF_FFFF_FFFF_FFFF
        while True:
            for place in range(at, at + 1 + (self._beside if at + self._beside <= most else 0)):
                if not taken[place]:
                    return place
                self._budget.spend(cost)
            perturb >>= 5
            at = (at * 5 + perturb + 1) & most


_ELEMENTS = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "QInt8": torch.qint8,
    "QUInt8": torch.quint8,
    "QInt32": torch.qint32,
    "QUInt4x2": torch.quint4x2,
    "QUInt2x4": torch.quint2x4,
}
STORAGES = {
    **{f"torch.{name}Storage": dtype for name, dtype in _ELEMENTS.items()},
    **{f"torch.cuda.{name}Storage": dtype for name, dtype in _ELEMENTS.items() if not name.startswith("Q")},
    "torch.storage.UntypedStorage": torch.uint8,
}
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_CONSTANTS = {
    "torch.Tensor",
    *(f"torch.per_{what}" for what in ("tensor_affine", "tensor_symmetric", "channel_affine", "channel_symmetric")),
    "torch.per_channel_affine_float_qparams",
}
_FEW = 100  # arguments and sizes; larger tuples are not searched


class ReduceContext(NamedTuple):
    """What a REDUCE needs: the Budget, the keys, and a callback for each text that names a device."""

    budget: Budget
    keys: Keys
    moved: Callable[[Any], object]


def named(name: str, allowed: set[str]) -> Any:
    """The value of a GLOBAL opcode: a dtype, or a stand-in for an allowed class or function."""
    if name in DTYPES:
        return DTYPES[name]
    if name in MAKERS or name in STORAGES or name in _CONSTANTS or name in allowed:
        return Global(name)
    raise Unfit("R064", f"it needs {name}, which weights-only loading does not allow")


def made(maker: Any, arguments: Any, context: ReduceContext) -> Any:
    """The stand-in that REDUCE and NEWOBJ make."""
    if not isinstance(maker, Global) or not isinstance(arguments, tuple):
        raise Unfit("R065", "its pickle calls something that is not callable")
    context.budget.spend(weight(arguments))
    if maker.name in MAKERS:
        try:
            return MAKERS[maker.name](arguments, context)
        except (TypeError, ValueError, IndexError, AttributeError, KeyError):
            raise Unfit("R065", f"its pickle calls {maker.name} with arguments that torch.save never writes") from None
    if maker.name in STORAGES or maker.name in _CONSTANTS:
        raise Unfit("R067", f"its pickle creates a {maker.name} directly, which torch.save never does")
    return Reduced(maker, arguments)


def weight(value: Any, depth: int = 2) -> int:
    """The cost of a call's arguments: a file can pass one large list again and again."""
    if isinstance(value, (str, bytes)):
        return len(value) >> 4
    if isinstance(value, PickledTensor):
        return len(value.parts) + len(value.other)
    if isinstance(value, tuple) and depth and len(value) <= _FEW:
        return len(value) + sum(weight(each, depth - 1) for each in value)
    return len(value) if isinstance(value, (tuple, list, dict)) else 0


def _need(holds: bool) -> None:
    if not holds:
        raise ValueError


# ---------------------------------------------------------------- Python's classes


def _dict(kind: str) -> Callable[[tuple[Any, ...], ReduceContext], Dict]:
    def make(arguments: tuple[Any, ...], context: ReduceContext) -> Dict:
        (pairs,) = arguments or ((),)
        _need(isinstance(pairs, (dict, list, tuple)))
        found = Dict(kind)
        context.keys.fill(found, pairs)
        return found

    return make


def _set(arguments: tuple[Any, ...], context: ReduceContext) -> SetItems:
    (members,) = arguments or ([],)
    _need(isinstance(members, (list, tuple)))
    context.keys.check_members(members)
    return SetItems(members)


def _encoded(arguments: tuple[Any, ...], _: ReduceContext) -> bytes:
    text, codec = arguments
    _need(codec in ("latin1", "latin-1"))
    return str(text).encode("latin1")


def _bytearray(arguments: tuple[Any, ...], context: ReduceContext) -> bytes:
    if len(arguments) == 2:
        return _encoded(arguments, context)
    (content,) = arguments or (b"",)
    _need(isinstance(content, bytes))
    return bytes(content)


def _complex(arguments: tuple[Any, ...], _: ReduceContext) -> complex:
    _need(all(type(each) is float for each in arguments))
    return complex(*arguments)


# ---------------------------------------------------------------- torch's classes


def _size(arguments: tuple[Any, ...], _: ReduceContext) -> tuple[int, ...]:
    (size,) = arguments or ((),)
    return count(size)


def _device(arguments: tuple[Any, ...], _: ReduceContext) -> PickledDevice:
    kind, *index = arguments
    _need(len(index) <= 1)
    return PickledDevice(f"{_place(kind)}:{count(index)[0]}" if index else _place(kind))


def _layout(arguments: tuple[Any, ...], _: ReduceContext) -> Global:
    (name,) = arguments
    _need(isinstance(name, str))
    return Global(name)


def _without_hooks(hooks: Any) -> None:
    _need(not hooks)


def _v1(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    storage, offset, size, stride = arguments
    return checked(storage, PickledView(storage.dtype, offset, size, stride), ())


def _v2(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    storage, offset, size, stride, grad, hooks, *metadata = arguments
    _without_hooks(hooks)
    return checked(storage, PickledView(storage.dtype, offset, size, stride), (bool(grad), *_bits(metadata)))


def _v3(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    storage, offset, size, stride, grad, hooks, dtype, *metadata = arguments
    _without_hooks(hooks)
    return checked(storage, PickledView(dtype, offset, size, stride), (bool(grad), *_bits(metadata)))


def _bits(metadata: list[Any]) -> tuple[Any, ...]:
    """The conjugate and negative bits."""
    _need(len(metadata) <= 1)
    bits = (metadata[0] if metadata else None) or {}
    return tuple((str(name), bool(value)) for name, value in bits.items())


def _quantized(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    storage, offset, size, stride, (scheme, *numbers), grad, hooks = arguments
    _without_hooks(hooks)
    kept = checked(storage, PickledView(storage.dtype, offset, size, stride), (bool(grad), scheme.name))
    # torch allocates a tensor of that size before it sets the storage.
    if kept.view is not None and 0 in kept.view.stride:
        raise Unfit("R066", "a quantized tensor repeats its elements (stride 0)")
    steps = ("q_per_channel_scales", "q_per_channel_zero_points", "q_per_channel_axis")
    scalar = scheme.name == "torch.per_tensor_affine"
    names = ("q_scale", "q_zero_point") if scalar else steps
    kept.parts = tuple(PickledChild(CALL, name, value) for name, value in zip(names, numbers, strict=True))
    return kept


_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def _sparse(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    layout, data = arguments
    names = _SPARSE[layout.name]
    parts = tuple(PickledChild(CALL, name, _tensor(part)) for name, part in zip(names, data, strict=False))
    size, *coalesced = data[len(names) :]
    return PickledTensor(None, None, parts, (layout.name, count(size), *map(bool, coalesced)))


def _nested(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    names = ("values", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
    return PickledTensor(
        None, None, tuple(PickledChild(CALL, *each) for each in zip(names, arguments, strict=True)), ()
    )


def _elsewhere(arguments: tuple[Any, ...], context: ReduceContext) -> PickledTensor:
    """A tensor of a device without storages (XLA): its data, and the device that it is loaded to."""
    data, dtype, device, grad = arguments
    where = _place(device)
    context.moved(device)
    if isinstance(data, Reduced):  # a numpy array
        return PickledTensor(None, None, (PickledChild(CALL, "numpy", data),), (dtype, bool(grad)))
    _tensor(data)
    if data.storage is not None:
        data.storage.device = where
    return PickledTensor(data.view, data.storage, data.parts, (*data.other, "elsewhere", dtype, bool(grad)))


def _meta(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    dtype, size, stride, grad = arguments
    return checked(None, PickledView(dtype, 0, size, stride), (bool(grad),))


def _wrapper(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    kind, dtype, size, stride, offset, layout, device, grad = arguments
    other = (kind.name, dtype, count(size), count(stride), count([offset]), layout.name, bool(grad))
    return PickledTensor(None, None, (PickledChild(ATTRIBUTE, "device", device),), other)


def _parameter(arguments: tuple[Any, ...], _: ReduceContext) -> PickledTensor:
    data, grad, *rest = (*arguments, True) if len(arguments) == 1 else arguments
    _without_hooks(rest[0] if rest else None)
    parts = (*_tensor(data).parts, *attributes(rest[1] if rest[1:] else None))
    return PickledTensor(data.view, data.storage, parts, (*data.other, "parameter", bool(grad)))


def _typed(arguments: tuple[Any, ...], context: ReduceContext) -> PickledTensor | Reduced:
    """A tensor subclass, or a tensor with attributes."""
    maker, kind, inner, state = arguments
    found = made(maker, inner, context)
    if isinstance(found, Reduced):  # made by an allowed function, such as a jagged nested tensor
        found.state = state
        return found
    tensor = _tensor(found)
    return PickledTensor(tensor.view, tensor.storage, (*tensor.parts, *attributes(state)), (*tensor.other, kind.name))


def _tensor(value: Any) -> PickledTensor:
    if not isinstance(value, PickledTensor):
        raise TypeError
    return value


MAKERS: dict[str, Callable[[tuple[Any, ...], ReduceContext], Any]] = {
    "collections.OrderedDict": _dict("OrderedDict"),
    "collections.Counter": _dict("Counter"),
    "builtins.set": _set,
    "builtins.bytearray": _bytearray,
    "builtins.complex": _complex,
    "_codecs.encode": _encoded,
    "torch.Size": _size,
    "torch.device": _device,
    "torch.serialization._get_layout": _layout,
    "torch.nn.parameter.Parameter": _parameter,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_tensor": _v1,
    "torch._utils._rebuild_tensor_v2": _v2,
    "torch._utils._rebuild_tensor_v3": _v3,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_nested_tensor": _nested,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta,
    "torch._utils._rebuild_wrapper_subclass": _wrapper,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _elsewhere,
    "torch._utils._rebuild_device_tensor_from_numpy": _elsewhere,
    "torch._tensor._rebuild_from_type_v2": _typed,
}


def stored(identity: Any) -> PersistentStorage:
    """The storage that a persistent id stands for."""
    mark, kind, key, location, numel = identity
    if mark != "storage" or not isinstance(kind, Global) or kind.name not in STORAGES:
        raise Unfit("R065", "its pickle has a persistent id that is not a storage")
    if not isinstance(key, str):
        raise Unfit("R065", "its pickle has a storage without a key")
    dtype = STORAGES[kind.name]
    return PersistentStorage(str(key), dtype, count([numel])[0] * dtype.itemsize, _place(location))


def _place(text: Any) -> str:
    """The name of a device, which must be short and printable since it is printed."""
    if not isinstance(text, str) or len(text) > LONGEST_PLACE or not text.isprintable():
        raise Unfit("R065", "its pickle has an invalid device name")
    return str(text)
