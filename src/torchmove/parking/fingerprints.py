"""Fingerprints: are the bytes on the device still those of the host copy?

A number for every MiB. A single change is always seen; what has changed places, or any other change, is missed with the
chance of two random numbers being the same. There are two ways, and a device always takes the same one:

- where the device multiplies matrices of bytes: each row of 4 KiB by 16 columns of random bytes, and what comes out,
  which is a hundredth of it, by random odd numbers. The bytes are read once, at the rate of the memory.
- elsewhere as 64-bit words: each is folded, so that its high bits matter as much as its low ones, multiplied by an odd
  factor of its own place, and all are added, modulo 2**64; a few MiB at a time, which stay in the device's cache.

Nothing is waited for.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchmove.internals.metadata import multiplied_bytes
from torchmove.internals.modes import without_modes

MIB = 1 << 20
_ROW, _COLUMNS, _LEAST_ROWS = 4096, 16, 17
_WORDS = MIB // 8


class Fingerprinter:
    """Takes fingerprints on a device. For one task: what it needs there is not kept."""

    def __init__(self, device: torch.device, *, by_rows: bool | None = None) -> None:
        self.by_rows = _multiplies_bytes(device) if by_rows is None else by_rows
        if self.by_rows:
            self.columns = _odd_bytes().to(device, non_blocking=True)
            self.factors = _odd_numbers(MIB // _ROW * _COLUMNS).to(device, non_blocking=True)
        else:
            self.factors = _odd_numbers(_WORDS).to(device, non_blocking=True)
        self.at_once = 1024 * MIB if self.by_rows else 32 * MIB

    def take(self, flat: Tensor) -> Tensor:
        """Of a flat tensor of bytes: a number for every MiB, and one for what is left, on its device."""
        whole = flat.numel() // MIB * MIB
        parts = [self._numbers(flat[at : min(at + self.at_once, whole)], MIB) for at in range(0, whole, self.at_once)]
        left = flat.numel() - whole
        if left:
            rest = flat.new_zeros(max(_rounded(left, _ROW), _LEAST_ROWS * _ROW) if self.by_rows else _rounded(left, 8))
            rest[:left].copy_(flat[whole:])
            parts.append(self._numbers(rest, len(rest)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _numbers(self, flat: Tensor, nbytes: int) -> Tensor:
        """A number for every so many bytes."""
        if self.by_rows:
            words = multiplied_bytes(flat.view(torch.int8).view(-1, _ROW), self.columns.t())
            words = words.view(-1, nbytes // _ROW * _COLUMNS)
            return (words * self.factors[: words.size(1)]).sum(1)
        words = flat.view(torch.int64).view(-1, nbytes // 8)
        folded = words >> 32
        folded &= 0xFFFFFFFF  # shifted in was the sign: with it, a word and its complement would become the same
        folded ^= words
        folded *= self.factors[: words.size(1)]
        return folded.sum(1)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


@cache
def _odd_numbers(count: int) -> Tensor:
    """As good as random, and the same every time. In host memory, where they are kept: to send them takes less time
    than to have a device make them."""
    with without_modes():  # they are for all, also for those who ask without them
        mixed = torch.arange(1, count + 1, device="cpu")
        for factor, shift in ((-7046029254386353131, 29), (-4658895280553007687, 32)):
            mixed *= factor
            mixed ^= mixed >> shift
        return mixed | 1


@cache
def _odd_bytes() -> Tensor:
    with without_modes():
        return _odd_numbers(_ROW * _COLUMNS).to(torch.int8).view(_COLUMNS, _ROW)


@cache
def _multiplies_bytes(device: torch.device) -> bool:
    """NVIDIA's do since Turing."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (7, 5)
