"""`inspect`: list the tensors of a checkpoint by path, without loading it. The Contents are its result."""

from __future__ import annotations

import os
import pathlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice
from operator import mul
from typing import Any, NamedTuple

from torchmove.checkpoints.file_kinds import SAFETENSORS, TORCH, Shards, chosen_file, is_index, kind_of, read_index
from torchmove.checkpoints.pickled_objects import (
    LONGEST_PLACE,
    PLAIN,
    PersistentStorage,
    PickledChild,
    PickledDevice,
    PickledTensor,
    PickledView,
    dtype_name,
    inside,
    nbytes,
    used_bytes,
)
from torchmove.checkpoints.safetensors import Header, header_of
from torchmove.checkpoints.unpickling import Reading, TorchFile
from torchmove.checkpoints.untrusted import Budget, InputFile, Unfit, in_a_line, naming
from torchmove.devices import remembered_device
from torchmove.formatting import counted, readable_bytes
from torchmove.internals.guards import without_collector
from torchmove.results import Result
from torchmove.surveying.paths import ITEM, KEY, KEYED, Path, matcher, root_path

_SHOWN = 10  # kinds of optimizer state
NO_DEVICE = "any device"  # a safetensors file does not record devices


class SavedTensor(NamedTuple):
    """A tensor of a checkpoint. `storage` is the index of its storage; None for a meta tensor."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int
    storage: int | None


class SavedStorage(NamedTuple):
    """A storage in a checkpoint: the device it was saved from, its bytes, and how many of them its tensors use."""

    file: str
    key: str
    device: str
    nbytes: int
    used_bytes: int


class OptimizerState(NamedTuple):
    """The state_dict of an optimizer: its parameters, and the bytes of each kind of state."""

    path: Path
    parameters: int
    kinds: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        return sum(self.kinds.values())

    def __str__(self) -> str:
        first = islice(self.kinds.items(), _SHOWN)
        kinds = ", ".join(f"{in_a_line(kind, 60)} {readable_bytes(size)}" for kind, size in first)
        kinds += f" and {len(self.kinds) - _SHOWN} more kinds" if len(self.kinds) > _SHOWN else ""
        return f"optimizer {shown(self.path)}: {counted(self.parameters, 'parameter')}; state: {kinds or 'none yet'}"


class DeviceMention(NamedTuple):
    """A device that a checkpoint names outside of its storages."""

    path: Path
    device: str


@dataclass(frozen=True, eq=False, repr=False)
class Contents(Result):
    """Every tensor of a checkpoint: path, dtype, shape, bytes, the device it was saved from, and shared storages."""

    name: str
    kind: str
    files: tuple[str, ...]
    entries: tuple[SavedTensor, ...]
    storages: tuple[SavedStorage, ...]
    optimizers: tuple[OptimizerState, ...]
    mentions: tuple[DeviceMention, ...]
    unused_bytes: int = 0  # of storages without a tensor
    unlisted: int = 0  # further paths of tensors; `entries` has the first thousand of each
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # `__metadata__` of each safetensors file

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in self.storages)

    @property
    def beyond_bytes(self) -> int:
        """Bytes of the storages that no tensor uses."""
        return self.unused_bytes + sum(kept.nbytes - kept.used_bytes for kept in self.storages)

    def devices(self) -> dict[str, int]:
        """Bytes by the device they were saved from."""
        totals: Counter[str] = Counter()
        for kept in self.storages:
            totals[kept.device] += kept.nbytes
        return dict(totals)

    def device_of(self, entry: SavedTensor) -> str:
        return "meta" if entry.storage is None else self.storages[entry.storage].device

    def sharing(self, entry: SavedTensor) -> Iterator[Path]:
        """The paths of the other tensors on the same storage."""
        others = self.by_storage[entry.storage] if entry.storage is not None else []
        return (self.entries[index].path for index in others if self.entries[index] is not entry)

    def select(self, pattern: str) -> SelectedContents:
        """The tensors whose path matches a pattern, with `*` as in `keep=`: `model` for `['model']` and all in it."""
        fits = matcher(pattern)
        return SelectedContents(
            self, pattern, tuple(index for index, each in enumerate(self.entries) if fits(each.path))
        )

    @cached_property
    def by_storage(self) -> Mapping[int, list[int]]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for index, entry in enumerate(self.entries):
            if entry.storage is not None:
                found[entry.storage].append(index)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class SelectedContents(Result):
    """Some of the tensors of a checkpoint: those that match a pattern."""

    contents: Contents
    pattern: str
    indices: tuple[int, ...]


def shown(path: Path) -> str:
    """A path as text; the empty path is the checkpoint itself."""
    return str(path) or "the checkpoint itself"


# ---------------------------------------------------------------- the traversal


# Python's own pickler cannot nest deeper by default, and longer paths are not readable.
_DEEPEST = 1_000
_LONGEST = 4_096


# A file of 1 MB can give one tensor half a million paths: further ones are only counted.
_MOST_NAMES = 1_000
_LISTED = (PickledTensor, PersistentStorage, PickledDevice)


@dataclass
class Found:
    """The contents of one file, or of several."""

    entries: list[SavedTensor] = field(default_factory=list)
    storages: list[SavedStorage] = field(default_factory=list)
    optimizers: list[OptimizerState] = field(default_factory=list)
    mentions: list[DeviceMention] = field(default_factory=list)
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    unlisted: int = 0  # paths of tensors, beyond the first thousand of each

    def extend(self, more: Found) -> None:
        self.entries.extend(more.entries)
        self.storages.extend(more.storages)
        self.optimizers.extend(more.optimizers)
        self.mentions.extend(more.mentions)
        self.metadata.update(more.metadata)
        self.unlisted += more.unlisted


def walk(reading: Reading, file: str, begin: int = 0) -> Found:
    """The contents of one file. Its storages are numbered from `begin`."""
    numbers = {key: begin + index for index, key in enumerate(reading.storages)}
    walked, found = _Walk(reading), Found()
    views: defaultdict[str, list[PickledView]] = defaultdict(list)
    states: set[int] = set()
    for path, value in walked.values():
        view = _view_of(value)
        if view is not None:
            stored = value if isinstance(value, PersistentStorage) else value.storage
            found.entries.append(_entry(path, view, numbers[stored.key] if stored else None))
            views[stored.key if stored else ""].append(view)
        if isinstance(value, dict) and _is_optimizer(value, states, reading.budget):
            found.optimizers.append(_optimizer(path, value, reading.budget))
        if (device := _device(path, value)) is not None:
            reading.budget.spend(16)
            found.mentions.append(DeviceMention(path, device))
    for stored in reading.storages.values():
        used = used_bytes(views[stored.key])
        found.storages.append(SavedStorage(file, stored.key, stored.device, stored.nbytes, used))
    found.unlisted = walked.unlisted
    return found


class _Walk:
    """Traverses the contents of a pickle. Containers are entered once; a tensor is listed by each of its paths."""

    def __init__(self, reading: Reading) -> None:
        self.unlisted = 0
        self._value, self._budget = reading.value, reading.budget
        self._names: dict[int, int] = {}  # how often each value has been visited, by its id

    def values(self) -> Iterator[tuple[Path, Any]]:
        """Every value with its path, in order, except numbers and long texts."""
        path = root_path("")
        yield path, self._value
        self._names[id(self._value)] = 1
        entered = [(path, 0, inside(self._value))]  # iterators, since one container may have millions of items
        while entered:
            path, length, parts = entered[-1]
            part = next(parts, None)
            if part is None:
                entered.pop()
            elif isinstance(part.value, str):
                if len(part.value) <= LONGEST_PLACE:
                    self._budget.spend(1 + (length >> 6))
                    yield _step(path, part), part.value
            elif not isinstance(part.value, PLAIN) and (names := self._named(part.value)):
                length += self._long(part)
                if len(entered) > _DEEPEST or length > _LONGEST:
                    raise Unfit("R067", f"it is nested {len(entered)} levels deep, with a path of {length} characters")
                step = _step(path, part)
                if isinstance(part.value, _LISTED):
                    self._budget.spend(32 + 2 * _dimensions(part.value) + (length >> 2))
                yield step, part.value
                if names == 1:
                    entered.append((step, length, inside(part.value)))

    def _named(self, value: Any) -> int:
        """The number of this path among the value's paths; 0 if it is skipped: tensors are listed by the first thousand
        paths, other values by the first."""
        names = self._names.get(id(value), 0)
        if names < (_MOST_NAMES if isinstance(value, _LISTED) else 1):
            self._names[id(value)] = names + 1
            return names + 1
        self.unlisted += isinstance(value, (PickledTensor, PersistentStorage))
        return 0

    def _long(self, part: PickledChild) -> int:
        """How many characters a step adds to the path."""
        if isinstance(part.what, str):
            return 2 + len(part.what)
        if part.how in (KEY, KEYED):
            self._budget.spend(1 + (part.what >> 6))  # resolving it iterates over all items before it
        if isinstance(part.what, int):
            return 8 + (part.what.bit_length() >> 2)
        if isinstance(part.what, (tuple, bytes)):
            letters = len(repr(part.what))
            self._budget.spend(letters >> 4)
            return 2 + letters
        return 8


def _dimensions(value: Any) -> int:
    return len(value.view.size) if isinstance(value, PickledTensor) and value.view else 1


def _step(path: Path, part: PickledChild) -> Path:
    if part.how is KEYED:
        return Path(path, KEYED, Path(path, KEY, part.what))
    return Path(path, part.how, part.what)


def _view_of(value: Any) -> PickledView | None:
    if isinstance(value, PersistentStorage):
        return PickledView(value.dtype, 0, (value.nbytes // value.dtype.itemsize,), (1,))
    return value.view if isinstance(value, PickledTensor) else None


def _entry(path: Path, view: PickledView, storage: int | None) -> SavedTensor:
    return SavedTensor(path, dtype_name(view.dtype), view.size, view.stride, view.offset, nbytes(view), storage)


def _device(path: Path, value: Any) -> str | None:
    if isinstance(value, PickledDevice):
        return value.text
    within = None if path.before is None else path.before.what
    named = remembered_device(path.what, str(value), within) if isinstance(value, str) else None
    return None if named is None else str(value)


def _is_optimizer(value: dict[Any, Any], states: set[int], budget: Budget) -> bool:
    """Whether it is an optimizer's state_dict whose state is not in `states`, the ids of those found before."""
    state, groups = value.get("state"), value.get("param_groups")
    if not isinstance(state, dict) or not isinstance(groups, list) or id(state) in states:
        return False
    budget.spend(len(groups))
    if not all(isinstance(group, dict) and isinstance(group.get("params"), (list, tuple)) for group in groups):
        return False
    states.add(id(state))
    return True


def _optimizer(path: Path, value: Mapping[str, Any], budget: Budget) -> OptimizerState:
    parameters = sum(len(group["params"]) for group in value["param_groups"])
    kinds: Counter[str] = Counter()
    states = [state for state in value["state"].values() if isinstance(state, dict)]
    for state in _once(states):
        budget.spend(4 * len(state))  # several optimizers can share it
        kinds.update(dict.fromkeys(map(str, state), 0))
        for tensor, kind in _once_each(state, budget):
            kinds[kind] += nbytes(tensor.view) if tensor.view else 0
    return OptimizerState(path, parameters, dict(kinds))


def _once_each(state: Mapping[Any, Any], budget: Budget) -> Iterator[tuple[PickledTensor, str]]:
    """The tensors of one parameter's state, including those in lists, each with its key."""
    kinds = {id(each): str(kind) for kind, each in state.items()}
    for each in _once(state.values()):
        tensors = each if isinstance(each, (list, tuple)) else (each,)
        budget.spend(len(tensors))
        yield from ((tensor, kinds[id(each)]) for tensor in tensors if isinstance(tensor, PickledTensor))


def _once(values: Iterable[Any]) -> Iterable[Any]:
    # A pickle can refer to one object a million times.
    return {id(value): value for value in values}.values()


class FileContents(NamedTuple):
    """One file of a checkpoint, as it was read; `opened` is None for a .safetensors file."""

    path: pathlib.Path
    found: Found
    opened: TorchFile | None

    @property
    def kind(self) -> str:
        return SAFETENSORS if self.opened is None else TORCH

    @property
    def unused_bytes(self) -> int:
        return 0 if self.opened is None else self.opened.unused_bytes

    def names(self) -> set[str]:
        """The names of its tensors, as an index has them."""
        if self.opened is None:
            return {entry.path.what for entry in self.found.entries}
        value = self.opened.reading.value
        items = value.items() if isinstance(value, dict) else ()
        return {name for name, each in items if isinstance(each, PickledTensor)}


def inspect(path: str | os.PathLike[str]) -> Contents:
    """List the contents of a checkpoint: a file of torch.save, a .safetensors file, or a sharded folder or its index.

    Reads the metadata of the tensors, not their data, and runs no code from the file. Raises CheckpointRefused unless
    it is a valid checkpoint that torch loads weights-only.
    """
    return read_checkpoint(path, lambda _: None)


@without_collector
def read_checkpoint(path: str | os.PathLike[str], visit: Callable[[FileContents], object]) -> Contents:
    """The contents of a checkpoint, whose files are read one by one: `visit` is called with each of them."""
    with naming(path):
        file = chosen_file(pathlib.Path(path))
        if is_index(file):
            return _sharded(pathlib.Path(path), read_index(file), visit)
        with InputFile(file) as source:
            contents = _read_file(source, file, None, 0)
        visit(contents)
        return _contents(file, contents.kind, (file.name,), contents.found, contents.unused_bytes)


def _read_file(source: InputFile, path: pathlib.Path, budget: Budget | None, begin: int) -> FileContents:
    if kind_of(source) == SAFETENSORS:
        return FileContents(path, _found_in(header_of(source, budget or Budget()), path.name, begin), None)
    opened = TorchFile(source, budget)
    return FileContents(path, walk(opened.reading, path.name, begin), opened)


def _found_in(header: Header, file: str, begin: int) -> Found:
    """The contents of a .safetensors file: each tensor has its own storage."""
    found = Found(metadata={file: header.metadata})
    for index, (name, dtype, shape, first, end) in enumerate(header.tensors, begin):
        path, stride = Path(root_path(""), ITEM, name), tuple(accumulate(shape[:0:-1], mul, initial=1))[::-1]
        found.entries.append(SavedTensor(path, dtype, shape, stride if shape else (), 0, end - first, index))
        found.storages.append(SavedStorage(file, name, NO_DEVICE, end - first, end - first))
    return found


def _contents(path: pathlib.Path, kind: str, files: tuple[str, ...], found: Found, unused_bytes: int) -> Contents:
    parts = (tuple(found.entries), tuple(found.storages), tuple(found.optimizers), tuple(found.mentions))
    return Contents(in_a_line(str(path)), kind, files, *parts, unused_bytes, found.unlisted, found.metadata)


def _sharded(folder: pathlib.Path, index: Shards, visit: Callable[[FileContents], object]) -> Contents:
    whole, budget = Found(), Budget()  # one for all files, since many index entries may name one file
    kinds, unused_bytes = set(), 0
    for file, names in index.files.items():
        path = index.path(file)
        with naming(path), InputFile(path) as source:
            contents = _read_file(source, path, budget, len(whole.storages))
        _expect(names, contents.names(), file)
        visit(contents)
        whole.extend(contents.found)
        kinds.add(contents.kind)
        unused_bytes += contents.unused_bytes
    kind = f"sharded {' and '.join(sorted(kinds))}"
    return _contents(folder, kind, tuple(index.files), whole, unused_bytes)


def _expect(names: list[str], there: set[str], file: str) -> None:
    missing = [name for name in names if name not in there]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise Unfit("R068", f"{in_a_line(file, 100)} has no tensor {in_a_line(missing[0], 100)!r}{more}")
