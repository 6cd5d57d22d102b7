"""Which tensors get another dtype or memory format, as `Module.to` converts: parameters, buffers and their gradients.

A storage is converted as a whole, so that ties and views stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torchmove.internals.storages import Metadata
from torchmove.planning.placement import Keep
from torchmove.planning.plan import Conversion, Note, Refusal
from torchmove.surveying.inventory import Composite, Inventory, StateStorage

_DIMENSIONS = {torch.channels_last: 4, torch.channels_last_3d: 5}
_FORMATS = (torch.preserve_format, torch.contiguous_format, *_DIMENSIONS)
_NO_MODULE = "only parameters and buffers of modules are converted, and no module is given"


class Request(NamedTuple):
    """What the user asked for: a dtype, a memory format, and whether optimizer state is cast too."""

    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.preserve_format
    cast_optimizer: bool = False

    def __bool__(self) -> bool:
        return self.dtype is not None or self.memory_format is not torch.preserve_format


UNCONVERTED = Request()


def request_of(dtype: torch.dtype | None, memory_format: torch.memory_format | None, cast_optimizer: bool) -> Request:
    """Check the arguments. Raises TypeError."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)):
        raise TypeError(f"dtype= takes a floating-point or complex dtype, not {dtype!r}. Fix: dtype=torch.bfloat16")
    if memory_format is not None and memory_format not in _FORMATS:
        raise TypeError(f"memory_format={memory_format!r} is unknown. Fix: memory_format=torch.channels_last")
    if cast_optimizer and dtype is None:
        raise TypeError("cast_optimizer=True needs dtype=. Fix: dtype=torch.bfloat16, cast_optimizer=True")
    return Request(dtype, memory_format or torch.preserve_format, cast_optimizer)


def conversions_of(
    inventory: Inventory, request: Request, keep: Keep
) -> tuple[Mapping[int, Conversion], list[Refusal]]:
    """The conversion of each storage, by its first tensor, and what cannot be converted."""
    if not request:
        return {}, []
    kinds = {type(holder) for holder, _ in inventory.holders.values()}
    if not any(issubclass(kind, (nn.Module, Optimizer)) for kind in kinds) and inventory.tensors:
        return {}, [Refusal("R049", inventory.roots[0], _NO_MODULE, "tensor = tensor.to(dtype)")]
    wanted = dict(_wanted(inventory, request, keep))
    parts = _parts(inventory)
    refusals = [_part_refusal(inventory, index, parts[index]) for index in wanted if index in parts]
    conversions: dict[int, Conversion] = {}
    for storage in inventory.storages:
        if any(index in wanted and index not in parts for index in storage.indices):
            refusal = _obstacle(inventory, storage, wanted)
            if refusal is not None:
                refusals.append(refusal)
            else:
                conversions[storage.indices[0]] = wanted[_first_filled(inventory, storage.indices)]
    return conversions, refusals


def _wanted(inventory: Inventory, request: Request, keep: Keep) -> Iterator[tuple[int, Conversion]]:
    """The tensors to convert; gradients and optimizer state follow their parameters."""
    roles, metadata = [*inventory.tensors.roles()], inventory.tensors.metadata
    has_modules = any(issubclass(type(holder), nn.Module) for holder, _ in inventory.holders.values())
    parameters: set[int] = set()
    later: list[int] = []
    for index, role in enumerate(roles):
        if role in ("parameter", "buffer"):
            entry = inventory.tensors[index]
            # Master copies are parameters of an optimizer, not of a module, and keep their dtype.
            is_own = not has_modules or "param_groups" not in entry.path.names()
            if is_own and not keep.has(entry.tensor, [entry.path]):
                parameters.add(id(entry.tensor))
                yield from _changed(index, metadata, request)
        elif role == "gradient" or (role == "state" and request.cast_optimizer):
            later.append(index)
    for index in later:
        owner = inventory.tensors[index].owner
        if owner is not None and owner.parameter in parameters:
            if roles[index] == "gradient":
                yield from _changed(index, metadata, request)
            elif metadata.shapes[index]:  # a scalar, such as `step`, keeps its dtype
                yield from _changed(index, metadata, request._replace(memory_format=torch.preserve_format))


def _changed(index: int, metadata: Metadata, request: Request) -> Iterator[tuple[int, Conversion]]:
    before, shape = metadata.dtypes[index], metadata.shapes[index]
    is_cast = request.dtype is not None and (before.is_floating_point or before.is_complex)
    dtype = request.dtype if is_cast and request.dtype is not None else before
    layout = request.memory_format
    has_strides = len(metadata.strides[index]) == len(shape)  # not on a device without storages
    if not has_strides or len(shape) < 4 or len(shape) != _DIMENSIONS.get(layout, len(shape)):
        layout = torch.preserve_format
    conversion = Conversion(dtype, layout)
    if dtype != before or conversion.stride(shape, metadata.strides[index]) != metadata.strides[index]:
        yield index, conversion


def conversion_notes(inventory: Inventory, conversions: Mapping[int, Conversion]) -> Iterator[Note]:
    """A note for optimizers whose state keeps another dtype than the parameters get: most steps refuse that."""
    dtypes = inventory.tensors.metadata.dtypes
    cast = {first for first, each in conversions.items() if each.dtype != dtypes[first]}
    trained = {id(inventory.tensors.objects[first]) for first in cast}
    for role, index in zip(inventory.tensors.roles(), range(len(dtypes)), strict=True) if cast else ():
        owner = inventory.tensors[index].owner if role == "state" else None
        stays = (
            index not in conversions and dtypes[index].is_floating_point and inventory.tensors.metadata.shapes[index]
        )
        if owner is not None and owner.parameter in trained and stays:
            path, name = inventory.tensors[index].path, str(dtypes[index]).removeprefix("torch.")
            why = (
                f"stays {name}, and its parameter gets another dtype, which most optimizers refuse: cast_optimizer=True"
            )
            yield Note("N064", str(path), f"{why} casts it too")
            return


def _first_filled(inventory: Inventory, indices: Sequence[int]) -> int:
    """The first of these tensors that has elements: the others fit anywhere."""
    return next((index for index in indices if inventory.tensors.metadata.nbytes[index]), indices[0])


def _obstacle(inventory: Inventory, storage: StateStorage, wanted: Mapping[int, Conversion]) -> Refusal | None:
    """Why the tensors on a storage cannot be converted together."""
    metadata, first = inventory.tensors.metadata, _first_filled(inventory, storage.indices)
    for index in storage.indices:
        if not metadata.nbytes[index]:
            continue
        if metadata.dtypes[index] != metadata.dtypes[first]:
            return _refusal(inventory, first, f"shares memory with {_path(inventory, index)} of another dtype")
        if wanted.get(index) != wanted.get(first):
            other, converted = (index, first) if first in wanted else (first, index)
            return _refusal(
                inventory, converted, f"shares memory with {_path(inventory, other)}, which is not converted"
            )
    conversion = wanted[first]
    if conversion.memory_format is not torch.preserve_format and not _is_one_view(metadata, storage):
        return _refusal(inventory, first, "is a view of a part of its storage: its memory format cannot change")
    return None


def _is_one_view(metadata: Metadata, storage: StateStorage) -> bool:
    """Whether all tensors on a storage are the same view, of all of it."""
    views = {(metadata.shapes[index], metadata.strides[index]) for index in storage.indices}
    return (
        len(views) == 1
        and len({*storage.offsets}) <= 1
        and metadata.nbytes[storage.indices[0]] == storage.nbytes == storage.storage_bytes
    )


def _parts(inventory: Inventory) -> dict[int, Composite]:
    """The tensors inside composite tensors, by index, with the composite."""
    number = inventory.number
    return {
        number[id(part)]: composite
        for composite in inventory.composites
        for part in composite.parts
        if id(part) in number
    }


def _part_refusal(inventory: Inventory, index: int, composite: Composite) -> Refusal:
    kind = type(composite.tensor).__name__
    return _refusal(inventory, index, f"is inside a composite tensor ({kind}), which records its own dtype")


def _path(inventory: Inventory, index: int) -> str:
    return str(inventory.tensors[index].path)


def _refusal(inventory: Inventory, index: int, why: str) -> Refusal:
    path = _path(inventory, index)
    return Refusal("R049", path, f"cannot be converted: it {why}", f"keep=[{path!r}], or convert both before the move")
