"""The memory of the GPU, taken away for a while."""

from __future__ import annotations

import torch
from torch import Tensor

MIB = 1 << 20


def fill_card(leaving: int) -> list[Tensor]:
    """Take all of the card but about `leaving` bytes: in pieces, since it need not have it all in one."""
    torch.cuda.empty_cache()
    pieces = []
    for size in (4096 * MIB, 256 * MIB, 16 * MIB):
        while torch.cuda.mem_get_info()[0] > leaving + size:
            pieces.append(torch.empty(size, dtype=torch.uint8, device="cuda:0"))
    return pieces
