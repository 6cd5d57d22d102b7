"""Fingerprints: are the bytes on the device still those of the host copy?

A number for every MiB, taken as a matrix of 64-bit words: its rows and its columns are summed, modulo 2**64, and each
sum is scrambled in a way of its own before all are added. A change is seen in a row and a column; what has changed
places with something else, in two rows or in two columns. The bytes are read twice, at the speed of the device's
memory, and nothing is waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIB = 1 << 20
_COLUMNS = 512
_ROW_BYTES = 8 * _COLUMNS
_ODD = -7046029254386353131  # 2**64 divided by the golden ratio


def fingerprint(flat: Tensor) -> Tensor:
    """Of a flat tensor of bytes: a number for every MiB, and one for what is left, on its device."""
    whole = flat.numel() // MIB * MIB
    parts = [_numbers(flat[:whole], MIB // _ROW_BYTES)] if whole else []
    left = flat.numel() - whole
    if left:
        rest = flat.new_zeros(-(-left // _ROW_BYTES) * _ROW_BYTES)
        rest[:left].copy_(flat[whole:])
        parts.append(_numbers(rest, rest.numel() // _ROW_BYTES))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _numbers(flat: Tensor, rows: int) -> Tensor:
    """One for every matrix of so many rows."""
    matrix = flat.view(torch.int64).view(-1, rows, _COLUMNS)
    sums = torch.cat([matrix.sum(2), matrix.sum(1)], dim=1)
    # Odd factors: no two sums that differ become the same.
    sums *= torch.arange(_ODD, _ODD + 2 * sums.size(1), 2, device=flat.device)
    sums ^= sums >> 31
    sums *= _ODD
    sums ^= sums >> 29
    return sums.sum(1)
