"""Fingerprints: are the bytes on the device still those of the host copy?

A row of two sums for every MiB, by 64-bit words and modulo 2**64: a plain one, which finds any single change, and one
weighted by row and column of the MiB taken as a matrix, which finds what has changed places. The bytes are read
twice, at the speed of the device's memory, and nothing is waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIB = 1 << 20
_COLUMNS = 512
_ROW_BYTES = 8 * _COLUMNS
_MIX = -7046029254386353131  # 2**64 divided by the golden ratio: weights of rows and columns do not meet


def fingerprint(flat: Tensor) -> Tensor:
    """Of a flat tensor of bytes: a row for every MiB, and one for what is left, on its device."""
    whole = flat.numel() // MIB * MIB
    rows = [_sums(flat[:whole], MIB // _ROW_BYTES)] if whole else []
    left = flat.numel() - whole
    if left:
        rest = flat.new_zeros(-(-left // _ROW_BYTES) * _ROW_BYTES)
        rest[:left].copy_(flat[whole:])
        rows.append(_sums(rest, rest.numel() // _ROW_BYTES))
    return torch.cat(rows)


def _sums(flat: Tensor, rows: int) -> Tensor:
    """A row for every matrix of so many rows."""
    matrix = flat.view(torch.int64).view(-1, rows, _COLUMNS)
    by_row, by_column = matrix.sum(2), matrix.sum(1)
    weighted = (by_row * _odd(rows, flat.device)).sum(1) + (by_column * _odd(_COLUMNS, flat.device)).sum(1) * _MIX
    return torch.stack([by_row.sum(1), weighted], dim=1)


def _odd(count: int, device: torch.device) -> Tensor:
    """1, 3, 5, ..."""
    return torch.arange(1, 2 * count, 2, device=device)
