"""One block, copied by torch's own copy: right everywhere, and slow from one kind of memory to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchmove.internals.metadata import has_storage
from torchmove.internals.views import bytes_of, packed
from torchmove.moving.batches import Advance, CopyBatch, StorageCopy


def copy_storage(cargo: StorageCopy) -> Tensor:
    source, storage, target, dense = cargo
    if dense or storage.opaque:
        # A clone: `.to()` of a tensor that is there already would hand back the tensor itself.
        return source.detach().clone() if source.device == target else source.detach().to(target)
    places, size = packed(storage.spans)
    if not has_storage(target.type):
        return _copy_typed(cargo, places, size)
    base = torch.empty(size, dtype=torch.uint8, device=target)
    for start, stop, begin in places:
        base[begin : begin + stop - start].copy_(bytes_of(source, start, stop))
    return base


def _copy_typed(cargo: StorageCopy, places: Sequence[tuple[int, int, int]], size: int) -> Tensor:
    """For a device without storages: the same bytes as a flat tensor of the windows' dtype."""
    gathered = torch.zeros(-(-size // 16) * 16, dtype=torch.uint8, device="cpu")
    for start, stop, begin in places:
        gathered[begin : begin + stop - start].copy_(bytes_of(cargo.source, start, stop))
    return gathered.view(cargo.source.dtype).to(cargo.target)


class Plain:
    name = "plain"

    def copy(self, load: CopyBatch, advance: Advance) -> list[Tensor]:
        copies = []
        for each in load:
            copies.append(copy_storage(each))
            advance(copies[-1].nbytes)
        return copies

    def finish(self) -> None:
        """Torch's own copies between kinds of memory are waited for as they are made."""

    def drop(self) -> None:
        """It keeps nothing."""
