"""The reference mover: one block after the other, by torch's own copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchmove._records import Move, Slot
from torchmove._storage import bytes_of, has_storage, packed


class Plain:
    name = "plain"

    def copy(self, moves: Sequence[Move], slots: Sequence[Slot]) -> list[Tensor]:
        return [_copy(move, slots) for move in moves]


def _copy(move: Move, slots: Sequence[Slot]) -> Tensor:
    first = slots[move.block.slots[0]]
    if move.block.opaque:
        return _copy_whole(first.tensor, move.target)
    places, size = packed(move.block.spans)
    if not has_storage(move.target.type):
        return _copy_typed(move, slots, places, size)
    base = torch.empty(size, dtype=torch.uint8, device=move.target)
    for start, stop, begin in places:
        base[begin : begin + stop - start].copy_(bytes_of(first.tensor, start, stop))
    return base


def _copy_whole(tensor: Tensor, target: torch.device) -> Tensor:
    # A clone: `.to()` of a tensor that is there already would hand back the tensor itself.
    return tensor.detach().clone() if tensor.device == target else tensor.detach().to(target)


def _copy_typed(move: Move, slots: Sequence[Slot], places: Sequence[tuple[int, int, int]], size: int) -> Tensor:
    """For a device without storages: the same bytes as a flat tensor of the windows' dtype."""
    first = slots[move.block.slots[0]]
    gathered = torch.zeros(-(-size // 16) * 16, dtype=torch.uint8)
    for start, stop, begin in places:
        gathered[begin : begin + stop - start].copy_(bytes_of(first.tensor, start, stop))
    return gathered.view(first.tensor.dtype).to(move.target)
