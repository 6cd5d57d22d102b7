"""Composite tensors (sparse, nested, wrapper subclasses): what their inner tensors are, and how to rebuild them.

An inner tensor of a sparse tensor is a new object at each access; that of a wrapper subclass may have other holders.
Both are ordinary tensors of the state and move like all others. The composite tensor is rebuilt from them, and the
result is swapped into the existing Python object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.internals.storages import coordinates_of, is_traceable_wrapper_subclass
from torchmove.surveying.paths import ATTRIBUTE, CALL

_DISTRIBUTED = {"torch.distributed._shard.sharded_tensor.api:ShardedTensor"}


class InnerTensor(NamedTuple):
    """A tensor inside a composite tensor, and the step that leads to it."""

    how: str
    what: str
    tensor: Tensor


class Decomposed(NamedTuple):
    """The inner tensors of a composite tensor, and a function that rebuilds it from them."""

    parts: tuple[InnerTensor, ...]
    rebuild: Callable[[], Tensor]


class Unmovable(Exception):
    """This kind of tensor has no inner tensors that could be moved."""


def decompose(tensor: Tensor) -> Decomposed | None:
    """The inner tensors of a composite. None: it is copied as a whole (quantized, nested, mkldnn). Raises Unmovable."""
    kind = type(tensor)
    if f"{kind.__module__}:{kind.__qualname__}" in _DISTRIBUTED:
        raise Unmovable("a ShardedTensor: it records the rank and device of each shard")
    wrapped: Any = tensor
    if is_traceable_wrapper_subclass(wrapped):
        return _wrapper(wrapped)
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise Unmovable(f"{type(tensor).__name__} does not define __tensor_flatten__: its inner tensors are unknown")
    if tensor.layout is torch.sparse_coo:
        return _coordinates(tensor)
    if tensor.layout in _COMPRESSED:
        return _compressed(tensor)
    return None


def _wrapper(tensor: Any) -> Decomposed:
    names, context = tensor.__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}
    # An inner attribute need not be a tensor: a DTensor also names its mesh.
    parts = tuple(InnerTensor(ATTRIBUTE, name, part) for name, part in inner.items() if isinstance(part, Tensor))
    size, stride = tensor.size(), tensor.stride()

    def rebuild() -> Tensor:
        return type(tensor).__tensor_unflatten__(inner, context, size, stride)  # type: ignore[no-any-return]

    return Decomposed(parts, rebuild)


def _coordinates(tensor: Tensor) -> Decomposed:
    plain = tensor.detach()
    indices, values = coordinates_of(plain)
    size, coalesced = tensor.size(), plain.is_coalesced()

    def rebuild() -> Tensor:
        return torch.sparse_coo_tensor(indices, values, size, is_coalesced=coalesced, check_invariants=False)

    return Decomposed((InnerTensor(CALL, "_indices", indices), InnerTensor(CALL, "_values", values)), rebuild)


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def _compressed(tensor: Tensor) -> Decomposed:
    plain = tensor.detach()
    names = (*_COMPRESSED[tensor.layout], "values")
    parts = tuple(InnerTensor(CALL, name, getattr(plain, name)()) for name in names)
    size, layout = tensor.size(), tensor.layout

    def rebuild() -> Tensor:
        pointers, indices, values = (part.tensor for part in parts)
        return torch.sparse_compressed_tensor(
            pointers, indices, values, size, layout=layout, check_invariants=False
        )  # fmt: skip

    return Decomposed(parts, rebuild)
