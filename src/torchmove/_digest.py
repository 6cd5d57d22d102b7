"""A digest of a tensor's bytes, computed where the tensor is, the same on every device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchmove._records import Digest, Slot
from torchmove._storage import windows_of

# Words at a time: the weights and products of a chunk are the only memory that a digest needs.
_CHUNK_WORDS = 1 << 20
_WORD_BYTES = 8


def digests(slots: Sequence[Slot]) -> tuple[Digest, ...]:
    """The digest of each slot; two windows that are the same are read once."""
    known: dict[object, Digest] = {}
    result = []
    for slot, *window in zip(slots, *windows_of(slots), strict=True):
        key = (slot.storage, *window)
        if key not in known:
            known[key] = digest(slot.tensor)
        result.append(known[key])
    return tuple(result)


def digest(tensor: Tensor) -> Digest:
    """Two sums over the 64-bit words of what the tensor shows, one of them weighted by position, both modulo 2**64."""
    words = _words(tensor)
    total = weighted = 0
    for start in range(0, words.numel(), _CHUNK_WORDS):
        chunk = words[start : start + _CHUNK_WORDS]
        weights = torch.arange(start, start + chunk.numel(), dtype=torch.int64, device=chunk.device) * 2 + 1
        total += int(chunk.sum())
        weighted += int((chunk * weights).sum())
    return total % 2**64, weighted % 2**64


def _words(tensor: Tensor) -> Tensor:
    data = tensor.data
    if data.device.type in ("lazy", "xla") or data.is_nested or data.is_quantized or data.layout is not torch.strided:
        data = _readable(data)
    # An expanded dimension shows the same bytes again and again: once is enough.
    for dimension, step in enumerate(data.stride()):
        if step == 0 and data.size(dimension) > 1:
            data = data.narrow(dimension, 0, 1)
    data = data.resolve_conj().resolve_neg().contiguous()
    # A single element counts as contiguous whatever its stride, but bytes can be seen only where that is 1.
    data = data.as_strided((data.numel(),), (1,)).view(torch.uint8)
    short = -data.numel() % _WORD_BYTES
    if short or data.storage_offset() % _WORD_BYTES:
        data = torch.cat([data, data.new_zeros(short)])
    return data.view(torch.int64)


def _readable(data: Tensor) -> Tensor:
    if data.is_nested:
        return torch.cat([part.cpu().flatten() for part in data.unbind()])
    if data.is_quantized:
        return data.int_repr().cpu()
    return data.cpu().to_dense() if data.layout is not torch.strided else data.cpu()
