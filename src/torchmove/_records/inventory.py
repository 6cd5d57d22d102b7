"""The Inventory: where is everything?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torchmove._paths import CALL, Path, make_path
from torchmove._records.reading import Fact, Owner, Role
from torchmove.report import Reported, Sheet, counted, readable_bytes, table


class Slot(NamedTuple):
    """A tensor of the state, and the storage it looks at, under a number of its own; -1 bytes: it shows none."""

    tensor: Tensor
    before: Path | None  # the last step of its path is not linked up before somebody asks
    how: str
    what: Any
    role: Role
    owner: Owner | None
    device: torch.device
    nbytes: int
    storage: int
    storage_bytes: int

    @property
    def path(self) -> Path:
        return make_path((self.before, self.how, self.what))


make_slot = partial(tuple.__new__, Slot)  # like Slot(...), from a tuple, and cheaper


class Window(NamedTuple):
    """What a tensor shows of its storage. Not part of a slot: it takes as long to read as all the rest, and planning
    seldom asks for it."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool

    @property
    def extent(self) -> tuple[int, int]:
        """The first byte that it reaches, and the first behind."""
        reach = sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        return self.offset * self.dtype.itemsize, (self.offset + reach + 1) * self.dtype.itemsize


class Windows(NamedTuple):
    """The windows of many tensors, in columns: they are read and compared by the column."""

    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    strides: list[tuple[int, ...]]
    offsets: list[int]
    requires_grads: list[bool]

    def of(self, index: int) -> Window:
        dtypes, shapes, strides, offsets, requires_grads = self
        return Window(dtypes[index], shapes[index], strides[index], offsets[index], requires_grads[index])


class Block(NamedTuple):
    """A storage: the slots that look at it, and the spans of its bytes that they reach. None: it shows no storage."""

    slots: tuple[int, ...]
    device: torch.device
    storage_bytes: int
    spans: tuple[tuple[int, int], ...]

    @property
    def opaque(self) -> bool:
        return self.storage_bytes < 0

    @property
    def nbytes(self) -> int:
        """What travels when it moves."""
        return sum(stop - start for start, stop in self.spans)


class Shell(NamedTuple):
    """A tensor made of tensors (sparse, nested, a wrapper subclass): `rebuild` makes it anew from its parts."""

    tensor: Tensor
    path: Path
    role: Role
    owner: Owner | None
    parts: tuple[Tensor, ...]
    rebuild: Callable[[], Tensor]


class DeviceValue(NamedTuple):
    """A device that a holder remembers: a `torch.device`, or its name in an attribute called `device`."""

    holder: Any
    how: str
    what: Any
    value: torch.device | str
    path: Path


class Told(NamedTuple):
    """A reader's fact, and the holder or tensor that it speaks of."""

    path: Path
    about: Any
    fact: Fact


@dataclass(frozen=True, eq=False, repr=False)
class Inventory(Reported):
    """Every tensor of a state: its path, role, device, bytes, and who shares with whom."""

    objects: tuple[Any, ...]
    roots: tuple[str, ...]
    slots: tuple[Slot, ...]
    blocks: tuple[Block, ...]
    shells: tuple[Shell, ...]
    device_values: tuple[DeviceValue, ...]
    told: tuple[Told, ...]
    also: tuple[tuple[int, Path | None, str, Any], ...]  # a tensor's id, and a further path that leads to it
    holders: Mapping[int, tuple[Any, Path]]  # every holder by its id; this keeps the id its own
    number: Mapping[int, int]  # the index of a tensor's slot, by the tensor's id

    def archived(self) -> Inventory:
        """The same, remembering the tensors by their ids alone: it keeps nothing of the state alive."""
        slots = tuple([make_slot((_GONE, *slot[1:5], None, *slot[6:])) for slot in self.slots])
        # A part of a sparse tensor is a new object at every look, and its id worth nothing.
        number = {tensor: index for tensor, index in self.number.items() if slots[index].how is not CALL}
        emptied: dict[str, Any] = {"objects": (), "shells": (), "device_values": (), "told": (), "holders": {}}
        return replace(self, slots=slots, number=number, **emptied)

    @cached_property
    def other_paths(self) -> Mapping[int, list[Path]]:
        """The further paths by which a tensor is reached, by its id."""
        paths: defaultdict[int, list[Path]] = defaultdict(list)
        for tensor, *path in self.also:
            paths[tensor].append(make_path(path))
        return paths

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes if not block.opaque else self.slots[block.slots[0]].nbytes for block in self.blocks)

    def devices(self) -> dict[torch.device, int]:
        """Bytes on each device."""
        totals: defaultdict[torch.device, int] = defaultdict(int)
        for block in self.blocks:
            totals[block.device] += self.slots[block.slots[0]].nbytes if block.opaque else block.nbytes
        return dict(totals)

    def sheet(self) -> Sheet:
        places = ", ".join(f"{readable_bytes(size)} on {device}" for device, size in self.devices().items())
        count = f"{counted(len(self.slots), 'tensor')} in {counted(len(self.blocks), 'storage')}"
        rows = (self._row(slot) for slot in self.slots)
        columns = ("path", "role", "device", "dtype", "shape", "bytes", "shares with")
        return Sheet(
            f"{', '.join(self.roots)}: {count}" + (f", {places}" if places else ""),
            tuple(f"{told.fact.code}  {told.path}: {told.fact.why}" for told in self.told),
            (table("tensors", columns, rows, total=len(self.slots)),),
        )

    def _row(self, slot: Slot) -> tuple[object, ...]:
        # That an optimizer has the parameter too goes without saying.
        also = [path for path in self.other_paths.get(id(slot.tensor), ()) if "param_groups" not in path.names()]
        shares = [*self.sharing(slot), *(f"is {path}" for path in also[:2])]
        left_out = len(shares[2:]) + len(also[2:])
        shown = ", ".join(map(str, shares[:2])) + (f" (+{left_out})" if left_out else "")
        dtype = str(slot.tensor.dtype).removeprefix("torch.")
        return slot.path, slot.role, slot.device, dtype, tuple(_shape(slot.tensor)), slot.nbytes, shown

    def sharing(self, slot: Slot) -> Iterator[Path]:
        """The paths of the other tensors that look at the slot's storage."""
        block = self._block_of.get(slot.storage)
        return (self.slots[index].path for index in block.slots if self.slots[index] is not slot) if block else iter(())

    @cached_property
    def _block_of(self) -> Mapping[int, Block]:
        return {self.slots[block.slots[0]].storage: block for block in self.blocks}

    def facts(self) -> dict[str, Any]:
        return {
            "roots": list(self.roots),
            "tensors": [self._slot_facts(slot) for slot in self.slots],
            "storages": [
                {"device": str(block.device), "bytes": block.nbytes, "tensors": list(block.slots)}
                for block in self.blocks
            ],
            "devices": {str(device): size for device, size in self.devices().items()},
            "device_values": [{"path": str(v.path), "value": str(v.value)} for v in self.device_values],
            "facts": [{"path": str(told.path), **told.fact._asdict()} for told in self.told],
        }

    def _slot_facts(self, slot: Slot) -> dict[str, Any]:
        return {
            "path": str(slot.path),
            "also": [str(path) for path in self.other_paths.get(id(slot.tensor), ())],
            "role": slot.role,
            "device": str(slot.device),
            "dtype": str(slot.tensor.dtype),
            "shape": list(_shape(slot.tensor)),
            "bytes": slot.nbytes,
            "requires_grad": slot.tensor.requires_grad,
        }


_GONE = torch.empty(0, device="meta")


def _shape(tensor: Tensor) -> Sequence[int]:
    """As far as it has one: an uninitialised parameter has none yet, a nested tensor many."""
    return () if is_lazy(tensor) or tensor.is_nested else tensor.shape
