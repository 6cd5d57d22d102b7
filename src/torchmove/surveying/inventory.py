"""The Inventory: every tensor of a state, and where it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.results import Result
from torchmove.surveying.children import Diagnostic, Owner, Role
from torchmove.surveying.paths import Path, make_path
from torchmove.surveying.storages import StateStorage, StateStorages
from torchmove.surveying.tensors import StateTensor, StateTensors


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
            totals[storage.device] += (
                self.tensors.metadata.nbytes[storage.indices[0]] if storage.opaque else storage.nbytes
            )
        return dict(totals)

    def sharing(self, entry: StateTensor) -> Iterator[Path]:
        """The paths of the other tensors that share the storage of this one."""
        storage = self._storage_of.get(entry.storage_id)
        others = [self.tensors[index] for index in storage.indices] if storage and len(storage.indices) > 1 else []
        return (other.path for other in others if other.tensor is not entry.tensor)

    @cached_property
    def _storage_of(self) -> Mapping[int, StateStorage]:
        storages = self.tensors.metadata.storage_ids
        return {storages[entry]: storage for storage in self.storages for entry in storage.indices}
