"""Fingerprints: are the bytes on the device still those of the host copy?

Three sums for every MiB, taken as a matrix of 32-bit numbers: of all, of all weighted by their row, and by their
column. No sum overflows, so they are exact: a single change is seen in the first, and what has changed places with
something else in one of the others. The bytes are read twice, at the speed of the device's memory, and nothing is
waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIB = 1 << 20
_SIDE = 512
_ROW_BYTES = 4 * _SIDE


def fingerprint(flat: Tensor) -> Tensor:
    """Of a flat tensor of bytes: a row for every MiB, and one for what is left, on its device."""
    whole = flat.numel() // MIB * MIB
    rows = [_sums(flat[:whole], _SIDE)] if whole else []
    left = flat.numel() - whole
    if left:
        rest = flat.new_zeros(-(-left // _ROW_BYTES) * _ROW_BYTES)
        rest[:left].copy_(flat[whole:])
        rows.append(_sums(rest, rest.numel() // _ROW_BYTES))
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def _sums(flat: Tensor, rows: int) -> Tensor:
    """A row for every matrix of so many rows."""
    matrix = flat.view(torch.int32).view(-1, rows, _SIDE)
    by_row, by_column = matrix.sum(2, dtype=torch.int64), matrix.sum(1, dtype=torch.int64)
    weights = _numbers(flat.device)
    weighted = (by_row * weights[:rows]).sum(1), (by_column * weights).sum(1)
    return torch.stack([by_row.sum(1), *weighted], dim=1)


def _numbers(device: torch.device) -> Tensor:
    return torch.arange(_SIDE, device=device)
