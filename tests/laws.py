"""What must be true of every state after every move, looked at without torchmove's own eyes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Torch's own copy does not keep their bytes, or does not copy them at all.
COPIED_AS_BYTES = {torch.bool, *(getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in range(1, 8))}


class Trace(NamedTuple):
    """All that a move must leave as it is."""

    identity: dict[str, int]
    bits: dict[str, bytes]
    forms: dict[str, tuple[Any, ...]]
    aliases: frozenset[tuple[str, str, int | None]]
    counters: frozenset[tuple[str, str]]


def trace(tensors: Mapping[str, Tensor]) -> Trace:
    return Trace(
        identity={name: id(tensor) for name, tensor in tensors.items()},
        bits={name: bits(tensor) for name, tensor in tensors.items()},
        forms={name: form(tensor) for name, tensor in tensors.items()},
        aliases=aliases(tensors),
        counters=counters(tensors),
    )


def bits(tensor: Tensor) -> bytes:
    """The bytes that a tensor shows, read on the CPU."""
    if torch.nn.parameter.is_lazy(tensor):
        return b""
    data = tensor.detach()
    if hasattr(data, "__tensor_flatten__"):
        names, _ = data.__tensor_flatten__()
        return b"".join(bits(getattr(data, name)) for name in names)
    if data.layout is torch.sparse_coo:
        return bits(data._indices()) + bits(data._values())
    if data.layout in (torch.sparse_csr, torch.sparse_bsr):
        return bits(data.crow_indices()) + bits(data.col_indices()) + bits(data.values())
    if data.layout in (torch.sparse_csc, torch.sparse_bsc):
        return bits(data.ccol_indices()) + bits(data.row_indices()) + bits(data.values())
    if data.is_nested:
        return b"".join(bits(part) for part in data.unbind())
    if data.is_quantized:
        data = data.int_repr()
    with torch.inference_mode(mode=data.is_inference()):
        if data.dtype in COPIED_AS_BYTES:
            data = data.view(torch.uint8)
        dense = data.cpu().resolve_conj().resolve_neg().contiguous()
        flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
        return bytes(flat.tolist()) if flat.numel() < 64 else flat.numpy().tobytes()


def form(tensor: Tensor) -> tuple[Any, ...]:
    if torch.nn.parameter.is_lazy(tensor):
        return (type(tensor), tensor.requires_grad)
    strided = tensor.layout is torch.strided and not tensor.is_nested
    hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return (
        type(tensor),
        tensor.dtype,
        tensor.layout,
        tuple(tensor.shape) if not tensor.is_nested else None,
        tensor.stride() if strided else None,
        tensor.requires_grad,
        tensor.is_leaf,
        None if tensor.is_inference() else tensor._version,
        tensor.is_inference(),
        tensor.is_conj(),
        tensor.is_neg(),
        tuple(len(each or ()) for each in hooks),
        id(tensor.grad) if tensor.is_leaf and tensor.grad is not None else None,
        () if hasattr(tensor, "__tensor_flatten__") else tuple(sorted(tensor.__dict__)),
    )


def aliases(tensors: Mapping[str, Tensor]) -> frozenset[tuple[str, str, int | None]]:
    """The pairs that share a storage, and how many bytes lie between their beginnings where they overlap.

    Where they do not, what lies between them may be out of everyone's reach, and need not travel.
    """
    windows = {name: tensor for name, tensor in tensors.items() if _is_window(tensor)}
    sharing: defaultdict[int, list[str]] = defaultdict(list)
    for name, tensor in windows.items():
        sharing[tensor.untyped_storage()._cdata].append(name)
    return frozenset(
        (one, other, _apart(windows[one], windows[other]))
        for names in sharing.values()
        for one, other in itertools.combinations(names, 2)
    )


def counters(tensors: Mapping[str, Tensor]) -> frozenset[tuple[str, str]]:
    """The pairs of tensors in one storage in which an in-place write to one counts as a write to the other."""
    counted = {one: tensors[one] for one in {name for pair in aliases(tensors) for name in pair[:2]}}
    counted = {name: tensor for name, tensor in sorted(counted.items()) if not tensor.is_inference()}
    return frozenset(pair for pair in itertools.combinations(counted, 2) if _counts_for(*map(counted.get, pair)))


def _counts_for(one: Tensor, other: Tensor) -> bool:
    before, set_version = (one._version, other._version), torch._C._autograd._unsafe_set_version_counter
    set_version((one,), (max(before) + 1,))
    shared = other._version == max(before) + 1
    set_version((one, other), before)
    return shared


def _apart(one: Tensor, other: Tensor) -> int | None:
    (begin, end), (other_begin, other_end) = _extent(one), _extent(other)
    return other_begin - begin if begin < other_end and other_begin < end else None


def _extent(tensor: Tensor) -> tuple[int, int]:
    size = tensor.dtype.itemsize
    reach = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.storage_offset() * size, (tensor.storage_offset() + reach + 1) * size


def _is_window(tensor: Tensor) -> bool:
    lazy = torch.nn.parameter.is_lazy(tensor)
    wrapper = hasattr(tensor, "__tensor_flatten__")
    return not (lazy or wrapper or tensor.is_nested or tensor.is_quantized) and tensor.layout is torch.strided


def addresses(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items() if _is_window(tensor)}


def assert_same(before: Trace, after: Trace) -> None:
    """Every law at once; says which one is broken, and by which tensor."""
    assert after.identity == before.identity, "an object was replaced"
    for name in before.bits:
        assert after.bits[name] == before.bits[name], f"the bits of {name} changed"
        assert after.forms[name] == before.forms[name], f"the form of {name} changed"
    assert after.aliases == before.aliases, "sharing changed"
    assert after.counters == before.counters, "version counters came together or apart"
