"""The tensors of a state, in columns: they are read, planned for and compared by the column."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torchmove._paths import CALL, Path, make_path
from torchmove._records.columns import Rows
from torchmove._records.origins import Origins
from torchmove._records.reading import Owner, Role

T = TypeVar("T")


class Slot(NamedTuple):
    """A tensor of the state, and the storage it looks at, under a number of its own; -1 bytes: it shows none."""

    tensor: Tensor
    before: Path | None
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


class Looks(NamedTuple):
    """What slots record of their tensors, in columns: where they are, what they look at, and what they show of it."""

    devices: list[torch.device]
    nbytes: list[int]
    storages: list[int]
    storage_bytes: list[int]
    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    strides: list[tuple[int, ...]]
    requires_grads: list[bool]
    resizables: list[bool]  # False: another storage may look at the same memory

    @classmethod
    def none(cls) -> Looks:
        return cls([], [], [], [], [], [], [], [], [])

    def window(self, index: int, offset: int) -> Window:
        return Window(self.dtypes[index], self.shapes[index], self.strides[index], offset)

    def is_like(self, other: Looks) -> bool:
        """Nothing differs but whether storages can be resized: `tensor.numpy()` changes that."""
        return self[:-1] == other[:-1]

    def extend(self, more: Looks) -> None:
        for column, rest in zip(self, more, strict=True):
            column.extend(rest)  # type: ignore[attr-defined]


class Window(NamedTuple):
    """What a tensor shows of its storage."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def moved(self, nbytes: int) -> Window:
        """The same of a storage that begins so many bytes before this one."""
        return self._replace(offset=self.offset + nbytes // self.dtype.itemsize)

    @property
    def extent(self) -> tuple[int, int]:
        """The first byte that it reaches, and the first behind."""
        reach = sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        return self.offset * self.dtype.itemsize, (self.offset + reach + 1) * self.dtype.itemsize


class Slots(Rows[Slot]):
    """All of them. A slot is put together when somebody asks for it."""

    def __init__(self, tensors: Sequence[Tensor], looks: Looks, origins: Origins, order: Sequence[int]) -> None:
        self.tensors, self.looks = tensors, looks
        self._origins, self._order = origins, order  # a tensor made of others was found, and is no slot

    def __len__(self) -> int:
        return len(self.tensors)

    def row(self, index: int) -> Slot:
        devices, nbytes, storages, sizes = self.looks[:4]
        origin = self._origins.of(self._order[index])
        return Slot(self.tensors[index], *origin, devices[index], nbytes[index], storages[index], sizes[index])

    def likenesses(self, indices: Sequence[int]) -> Iterator[Hashable]:
        """The same for tensors that differ in nothing but the parameter they belong to; None: this is the only one."""
        return self._origins.likenesses([self._order[index] for index in indices])

    def roles(self) -> Sequence[Role]:
        return self._in_order(list(self._origins.roles()))

    def made_anew(self) -> list[int]:
        """Those of which there is a new object at every look, and its id worth nothing: the parts of sparse tensors."""
        return [index for index, how in enumerate(self._in_order(list(self._origins.hows()))) if how is CALL]

    def _in_order(self, found: list[T]) -> list[T]:
        return found if len(found) == len(self) else [found[index] for index in self._order]

    def archived(self) -> Slots:
        """The same, without the tensors."""
        return Slots([_GONE] * len(self), self.looks, self._origins.archived(), self._order)


_GONE = torch.empty(0, device="meta")


def shape_of(tensor: Tensor) -> Sequence[int]:
    """As far as it has one: an uninitialised parameter has none yet, a nested tensor many."""
    return () if is_lazy(tensor) or tensor.is_nested else tensor.shape
