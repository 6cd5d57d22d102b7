"""The Inventory: every tensor and storage of a state, in columns; a row is made when it is asked for.

The traversal finds tensors many at a time: the parameters of a module, the state of an optimizer. What such a run of
tensors has in common - path, role, owner - is kept once. An archived inventory holds no tensor.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from itertools import chain, islice, pairwise, repeat
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import torch
from torch import Tensor

from torchmove.internals.storages import Metadata
from torchmove.results import Result
from torchmove.surveying.paths import (
    ATTRIBUTE,
    CALL,
    ITEM,
    KEYED,
    NOWHERE,
    Diagnostic,
    Owner,
    Path,
    Role,
    make_path,
    matcher,
    texts_of,
)
from torchmove.surveying.summary import Sort, Summary, order_of, summarize

Row = TypeVar("Row")


class Rows(Sequence[Row]):
    """A sequence whose rows are made on access: subclasses define `__len__` and `row`."""

    def row(self, index: int) -> Row:
        raise NotImplementedError

    def rows(self, some: range) -> list[Row]:
        return [self.row(index) for index in some]

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return self.rows(range(*index.indices(len(self))))
        return self.row(index)


T = TypeVar("T")


class Origin(NamedTuple):
    """Where a tensor was found. The last step of its path is only added on access."""

    before: Path | None
    how: str
    what: Any
    role: Role
    owner: Owner | None

    @property
    def path(self) -> Path:
        return make_path(self[:3])


class TensorRun(Protocol):
    """The origins of consecutively found tensors."""

    @property
    def role(self) -> Role: ...

    @property
    def how(self) -> str: ...

    def origin(self, at: int, found: Origins, /) -> Origin: ...

    def likeness(self, at: int, /) -> Hashable:
        """A key that is equal for tensors that differ only in their parameter; None: no other tensor is alike."""
        ...

    def archived(self) -> TensorRun: ...


class ChildRun(NamedTuple):
    """Tensors in one holder, each reached by its key."""

    before: Path | None
    how: str
    keys: Sequence[Any]
    role: Role
    owner: Owner | None

    def origin(self, at: int, _: Origins, /) -> Origin:
        before, how, keys, role, owner = self
        return Origin(before, how, keys[at], role, owner)

    def likeness(self, _: int, /) -> Hashable:
        return None

    def archived(self) -> ChildRun:
        return self if self.owner is None else self._replace(owner=None)


make_child_run = partial(tuple.__new__, ChildRun)  # like ChildRun(...), but from a tuple, which is cheaper


class GradientRun(NamedTuple):
    """The gradients of tensors that were found before."""

    of: Sequence[int]
    ids: Sequence[int]
    role: Role = "gradient"
    how: str = ATTRIBUTE

    def origin(self, at: int, found: Origins, /) -> Origin:
        owner = Owner(None, _NO_GROUP, self.ids[at])
        return Origin(found.of(self.of[at]).path, ATTRIBUTE, "grad", "gradient", owner)

    def likeness(self, _: int, /) -> Hashable:
        return None

    def archived(self) -> GradientRun:
        return self


class StateRun(NamedTuple):
    """The tensors that an optimizer keeps for its parameters."""

    before: Path
    optimizer: Any
    parameters: Sequence[int]  # their ids
    places: Sequence[int | None]  # their indices among the found tensors
    groups: Sequence[Mapping[str, Any]]  # for each parameter
    owners: Sequence[int]  # for each tensor, the index of its parameter
    keys: Sequence[Any]  # for each tensor
    role: Role = "state"
    how: str = ITEM

    def origin(self, at: int, found: Origins, /) -> Origin:
        which = self.owners[at]
        place = self.places[which]
        parameter = NOWHERE if place is None else found.of(place).path
        owner = Owner(self.optimizer, self.groups[which], self.parameters[which]) if self.groups else None
        return Origin(make_path((self.before, KEYED, parameter)), ITEM, self.keys[at], "state", owner)

    def likeness(self, at: int, /) -> Hashable:
        return id(self.optimizer), self.keys[at], id(self.groups[self.owners[at]])

    def archived(self) -> StateRun:
        return self._replace(groups=(), optimizer=None)


class Origins:
    """The runs of a whole traversal, in the order in which it found the tensors."""

    def __init__(self, runs: Sequence[TensorRun] = (), starts: Sequence[int] = (), count: int = 0) -> None:
        self.runs, self.starts, self.count = list(runs), list(starts), count

    def add(self, run: TensorRun, count: int) -> None:
        self.runs.append(run)
        self.starts.append(self.count)
        self.count += count

    def of(self, index: int) -> Origin:
        at = bisect_right(self.starts, index) - 1
        return self.runs[at].origin(index - self.starts[at], self)

    def likenesses(self, indices: Sequence[int]) -> Iterator[Hashable]:
        start = stop = 0
        for index in indices:
            if not start <= index < stop:  # mostly it is in the same run as the one before
                at = bisect_right(self.starts, index)
                run, start = self.runs[at - 1], self.starts[at - 1]
                stop = self.starts[at] if at < len(self.starts) else self.count
            yield run.likeness(index - start)

    def roles(self) -> Iterator[Role]:
        """The role of each tensor."""
        return self._for_each([run.role for run in self.runs])

    def hows(self) -> Iterator[str]:
        """The kind of the last step to each tensor."""
        return self._for_each([run.how for run in self.runs])

    def _for_each(self, of_runs: Sequence[T]) -> Iterator[T]:
        lengths = (stop - start for start, stop in pairwise([*self.starts, self.count]))
        return chain.from_iterable(map(repeat, of_runs, lengths))

    def archived(self) -> Origins:
        return Origins([run.archived() for run in self.runs], self.starts, self.count)


_NO_GROUP: dict[str, Any] = {}


class StateTensor(NamedTuple):
    """A tensor of the state, where it was found, and its storage, by id; -1 bytes: it has none."""

    tensor: Tensor
    before: Path | None
    how: str
    what: Any
    role: Role
    owner: Owner | None
    device: torch.device
    nbytes: int
    storage_id: int
    storage_bytes: int

    @property
    def path(self) -> Path:
        return make_path((self.before, self.how, self.what))


class StateTensors(Rows[StateTensor]):
    """The tensors of a state, in columns; a row is made on access.

    `objects` are the tensors themselves, `metadata` is what was read from them.
    """

    def __init__(self, objects: Sequence[Tensor], metadata: Metadata, origins: Origins, order: Sequence[int]) -> None:
        self.objects, self.metadata = objects, metadata
        self._origins, self._order = origins, order  # the traversal also found composite tensors, which have no row

    def __len__(self) -> int:
        return len(self.objects)

    def row(self, index: int) -> StateTensor:
        devices, nbytes, storages, sizes = self.metadata[:4]
        origin = self._origins.of(self._order[index])
        return StateTensor(self.objects[index], *origin, devices[index], nbytes[index], storages[index], sizes[index])

    def likenesses(self, indices: Sequence[int]) -> Iterator[Hashable]:
        """A key that is equal for tensors that differ only in their parameter; None: no other tensor is alike."""
        return self._origins.likenesses([self._order[index] for index in indices])

    def roles(self) -> Sequence[Role]:
        return self._in_order(list(self._origins.roles()))

    def made_anew(self) -> list[int]:
        """The inner tensors of sparse tensors: each access returns a new object, so their ids mean nothing later."""
        return [index for index, how in enumerate(self._in_order(list(self._origins.hows()))) if how is CALL]

    def _in_order(self, found: list[T]) -> list[T]:
        return found if len(found) == len(self) else [found[index] for index in self._order]

    def archived(self) -> StateTensors:
        """The same, without the tensors."""
        return StateTensors([_PLACEHOLDER] * len(self), self.metadata, self._origins.archived(), self._order)


_PLACEHOLDER = torch.empty(0, device="meta")


class StateStorage(NamedTuple):
    """A storage: the tensors on it, by their indices, and the spans of its bytes that they reach.

    With several tensors, `offsets` has the storage offset of each, in elements. Several storages over the same memory
    are one; `address` is where that memory starts. A negative size: the device has no storages.
    """

    indices: tuple[int, ...]
    device: torch.device
    storage_bytes: int
    spans: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...] = ()
    address: int | None = None

    @property
    def opaque(self) -> bool:
        return self.storage_bytes < 0

    @property
    def nbytes(self) -> int:
        """The bytes that are copied when it moves."""
        return sum(stop - start for start, stop in self.spans)


class StateStorages(Rows[StateStorage]):
    """The storages, by the index of the first tensor on each; a row is made on access.

    `special` holds those with several tensors, and those of which the tensors reach only a part.
    """

    def __init__(self, metadata: Metadata, firsts: Sequence[int], special: Mapping[int, StateStorage]) -> None:
        self.metadata, self.firsts, self.special = metadata, firsts, special

    def __len__(self) -> int:
        return len(self.firsts)

    def row(self, index: int) -> StateStorage:
        return self.at(self.firsts[index])

    def at(self, first: int) -> StateStorage:
        """The storage on which this is the first tensor."""
        special = self.special.get(first)
        if special is not None:
            return special
        size = self.metadata.storage_bytes[first]
        return StateStorage((first,), self.metadata.devices[first], size, ((0, size),))

    def shared(self) -> list[StateStorage]:
        """The storages with more than one tensor."""
        return [storage for storage in self.special.values() if len(storage.indices) > 1]


class Composite(NamedTuple):
    """A tensor made of tensors (sparse, nested, a wrapper subclass); `rebuild` makes it again from its parts."""

    tensor: Tensor
    path: Path
    role: Role
    owner: Owner | None
    parts: tuple[Tensor, ...]
    rebuild: Callable[[], Tensor]


class RememberedDevice(NamedTuple):
    """A device that a holder stores: a `torch.device`, or a name or index in an attribute named like a device."""

    holder: Any
    how: str
    what: Any
    value: torch.device | str | int
    path: Path

    @property
    def device(self) -> torch.device:
        return torch.device(self.value)


class OtherPaths(NamedTuple):
    """Tensors, by id, and further paths that lead to them."""

    tensors: Sequence[int]
    before: Path | None
    how: str
    keys: Sequence[Any]


class FoundDiagnostic(NamedTuple):
    """A diagnostic, and the holder or tensor that it is about."""

    path: Path
    subject: Any
    diagnostic: Diagnostic


@dataclass(frozen=True, eq=False, repr=False)
class Inventory(Result):
    """Every tensor of a state: path, role, device, bytes, and which tensors share storage. Keeps the state alive.

    It can be iterated, over the rows of `tensors`, and indexed, by number or by a path: as it prints, as in a
    state_dict, or without the object's name if one tensor alone has that: `inventory["model[0].weight"]`,
    `inventory["model.0.weight"]`, `inventory["0.weight"]`. `in` takes a path or a tensor.

    Attributes:
        roots: the names of the given objects, with which paths start.
        tensors: a row for each tensor: `path`, `role`, `device`, `nbytes`, `tensor`.
        storages: a row for each storage: `device`, `nbytes`, and the indices of the tensors on it.
        diagnostics: what prevents a move, and notes, each with its path.
    """

    objects: tuple[Any, ...]
    roots: tuple[str, ...]
    tensors: StateTensors
    storages: StateStorages
    composites: tuple[Composite, ...]
    device_values: tuple[RememberedDevice, ...]
    diagnostics: tuple[FoundDiagnostic, ...]
    further_paths: tuple[OtherPaths, ...]
    holders: Mapping[int, tuple[Any, Path]]  # every holder by its id; holding it keeps the id valid
    number: Mapping[int, int]  # the index of a tensor, by its id
    spent: frozenset[int] = frozenset()  # stored results whose graphs can no longer run backward

    def archived(self, *, numbered: bool = True) -> Inventory:
        """A copy that holds no tensors, only their ids: it keeps nothing of the state alive.

        Not `numbered`, it does not store the ids either, and only describes the state.
        """
        number = self.number if numbered else {}
        if self.composites and numbered:
            rebuilt = {*self.tensors.made_anew()}
            number = {tensor: index for tensor, index in number.items() if index not in rebuilt}
        emptied: dict[str, Any] = {
            "objects": (),
            "composites": (),
            "device_values": (),
            "diagnostics": (),
            "holders": {},
        }
        return replace(self, tensors=self.tensors.archived(), number=number, **emptied)

    def __len__(self) -> int:
        return len(self.tensors)

    def __bool__(self) -> bool:
        return True  # also an inventory of a state without tensors is a result

    def __iter__(self) -> Iterator[StateTensor]:
        return iter(self.tensors)

    def __contains__(self, each: object) -> bool:
        if isinstance(each, Tensor):
            index = self.number.get(id(each))
            return index is not None and self.tensors.objects[index] is each
        return isinstance(each, (str, Path)) and str(each) in self._places

    @overload
    def __getitem__(self, which: int | str | Path) -> StateTensor: ...

    @overload
    def __getitem__(self, which: slice) -> list[StateTensor]: ...

    def __getitem__(self, which: int | slice | str | Path) -> StateTensor | list[StateTensor]:
        if not isinstance(which, (str, Path)):
            return self.tensors[which]
        if str(which) not in self._places:
            raise KeyError(_unknown(str(which), self._places))
        return self.tensors[self._places[str(which)]]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """The index of each tensor by all spellings of its paths; without those that fit several tensors."""
        paths = [(entry.path, index) for index, entry in enumerate(self.tensors)]
        for tensor, others in self.other_paths.items():
            paths += [(path, self.number[tensor]) for path in others if tensor in self.number]
        spellings = [(texts_of(path), index) for path, index in paths]
        places: dict[str, int] = {}
        for number in range(4):
            found: dict[str, int] = {}
            for texts, index in spellings:
                if found.setdefault(texts[number], index) != index:
                    found[texts[number]] = _SEVERAL
            places = found | places
        return {text: index for text, index in places.items() if index != _SEVERAL}

    @cached_property
    def other_paths(self) -> Mapping[int, list[Path]]:
        """The further paths that lead to a tensor, by its id."""
        paths: defaultdict[int, list[Path]] = defaultdict(list)
        for tensors, before, how, keys in self.further_paths:
            for tensor, key in zip(tensors, keys, strict=True):
                paths[tensor].append(make_path((before, how, key)))
        return paths

    @property
    def nbytes(self) -> int:
        """Bytes on all devices together. Shared bytes count once."""
        return sum(self.devices().values())

    def devices(self) -> dict[torch.device, int]:
        """Bytes on each device."""
        totals: defaultdict[torch.device, int] = defaultdict(int)
        for storage in self.storages:
            totals[storage.device] += self.bytes_on(storage)
        return dict(totals)

    def bytes_on(self, storage: StateStorage) -> int:
        """The bytes of a storage; where a device has no storages, those of its tensor."""
        return self.tensors.metadata.nbytes[storage.indices[0]] if storage.opaque else storage.nbytes

    def summary(self, depth: int = 2, *, sort: Sort | None = None, pattern: str = "") -> Summary:
        """Summarize the state by module: parameters, bytes by kind, devices and dtypes.

        Args:
            depth: how many levels of modules below the given objects to list. What is deeper counts in the last level.
            sort: order the modules of each level by "bytes", "path" or "parameters"; None: as found.
            pattern: count only the tensors whose path matches, with `*` as in `keep=`, and the gradients and optimizer
                state of parameters that match.

        Returns:
            The summary. It prints as a table; `modules` has a row for each module.

        Examples:
            >>> import torch, torchmove as tm
            >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
            >>> [(str(row.path), row.parameters) for row in tm.survey(model).summary().modules]
            [('model', 13), ('model[0]', 9), ('model[1]', 4)]
        """
        return summarize(self, depth, sort, pattern)

    def select(self, pattern: str = "", *, sort: Sort | None = None) -> Selection:
        """Select the tensors whose path, or another path to them, matches a pattern, with `*` as in `keep=`.

        Args:
            pattern: "" selects all tensors.
            sort: "bytes" or "parameters", the largest first, or "path"; None: as found.

        Returns:
            The selection. It prints as a table, and can be iterated and indexed by number.

        Examples:
            >>> import torch, torchmove as tm
            >>> inventory = tm.survey(torch.nn.Linear(2, 3))
            >>> [str(entry.path) for entry in inventory.select("*.bias")], inventory["model.bias"].nbytes
            (['model.bias'], 12)
        """
        fits, order = matcher(pattern), order_of(sort)
        found = [index for index, entry in enumerate(self.tensors) if not pattern or self._fits(entry, fits)]
        if order is not None:
            found.sort(key=lambda index: order(_Sortable.of(self.tensors, index)))
        return Selection(self, pattern, tuple(found))

    def _fits(self, entry: StateTensor, fits: Callable[[Path], bool]) -> bool:
        return fits(entry.path) or any(map(fits, self.aliases(entry)))

    def aliases(self, entry: StateTensor) -> list[Path]:
        """The further paths to a tensor, except those in an optimizer's param_groups, which most parameters have."""
        return [path for path in self.other_paths.get(id(entry.tensor), ()) if "param_groups" not in path.names()]

    def sharing(self, entry: StateTensor) -> Iterator[Path]:
        """The paths of the other tensors that share the storage of this one."""
        storage = self._storage_of.get(entry.storage_id)
        others = [self.tensors[index] for index in storage.indices] if storage and len(storage.indices) > 1 else []
        return (other.path for other in others if other.tensor is not entry.tensor)

    @cached_property
    def _storage_of(self) -> Mapping[int, StateStorage]:
        storages = self.tensors.metadata.storage_ids
        return {storages[entry]: storage for storage in self.storages for entry in storage.indices}


class _Sortable(NamedTuple):
    """A tensor as it is sorted."""

    path: Path
    nbytes: int
    parameters: int

    @classmethod
    def of(cls, tensors: StateTensors, index: int) -> _Sortable:
        entry = tensors[index]
        elements = math.prod(tensors.metadata.shapes[index]) if entry.role == "parameter" else 0
        return cls(entry.path, entry.nbytes, elements)


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Result):
    """Some of the tensors of an inventory: those that match a pattern, perhaps sorted."""

    inventory: Inventory
    pattern: str  # "" for all tensors
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[StateTensor]:
        return (self.inventory.tensors[index] for index in self.indices)

    def __getitem__(self, which: int) -> StateTensor:
        return self.inventory.tensors[self.indices[which]]


_SEVERAL = -1  # instead of an index
_MOST_COMPARED = 5_000  # comparing every path of a large state takes seconds


def _unknown(text: str, known: Mapping[str, int]) -> str:
    """The message for a path that leads to no tensor, with those that look like it."""
    candidates = list(known)
    if len(candidates) > _MOST_COMPARED:
        before, _, last = text.rpartition(".")
        near = (each for each in candidates if each.startswith(f"{before}.") or each.endswith(f".{last}"))
        candidates = list(islice(near, _MOST_COMPARED))
    close = get_close_matches(text, candidates)
    return f"no tensor at {text!r}" + (f". Did you mean {' or '.join(map(repr, close))}?" if close else "")
