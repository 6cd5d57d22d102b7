"""The plain mover: torch's own copy, one storage at a time. Works on every device; slow between CPU and CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchmove.internals.metadata import has_storage
from torchmove.internals.views import bytes_of, packed
from torchmove.moving.batches import Advance, CopyBatch, StorageCopy


def copy_storage(storage_copy: StorageCopy) -> Tensor:
    source, storage, target, dense = storage_copy
    if dense or storage.opaque:
        # clone(), since `.to()` returns the tensor itself if it is on the target already.
        return source.detach().clone() if source.device == target else source.detach().to(target)
    places, size = packed(storage.spans)
    if not has_storage(target.type):
        return _copy_typed(storage_copy, places, size)
    base = torch.empty(size, dtype=torch.uint8, device=target)
    for start, stop, begin in places:
        base[begin : begin + stop - start].copy_(bytes_of(source, start, stop))
    return base


def _copy_typed(storage_copy: StorageCopy, places: Sequence[tuple[int, int, int]], size: int) -> Tensor:
    """For a device without storages: the same bytes as a flat tensor of the views' dtype."""
    gathered = torch.zeros(-(-size // 16) * 16, dtype=torch.uint8, device="cpu")
    for start, stop, begin in places:
        gathered[begin : begin + stop - start].copy_(bytes_of(storage_copy.source, start, stop))
    return gathered.view(storage_copy.source.dtype).to(storage_copy.target)


class Plain:
    """Copies each storage by torch's own copy."""

    name = "plain"

    def copy(self, batch: CopyBatch, advance: Advance) -> list[Tensor]:
        copies = []
        for each in batch:
            copies.append(copy_storage(each))
            advance(copies[-1].nbytes)
        return copies

    def finish(self) -> None:
        """Nothing to wait for: these copies are synchronous."""

    def drop(self) -> None:
        """Nothing to release."""
