"""Fingerprints: check on the device whether its bytes still equal the host copy.

A fingerprint has one 64-bit number per MiB. A single change is always detected; swapped bytes or any other change are
missed with the probability that two random numbers are equal. There are two methods; a device always uses the same:

- where the device multiplies int8 matrices: each row of 4 KiB times 16 columns of random bytes; the products, a
  hundredth of the data, times random odd numbers. The bytes are read once, at memory bandwidth.
- elsewhere, as 64-bit words: each is folded, so that its high bits count as much as its low ones, multiplied by an odd
  factor for its position, and all are added modulo 2**64; a few MiB at a time, which stay in the device's cache.

Nothing here synchronizes with the device.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchmove.internals.guards import without_modes
from torchmove.internals.storages import multiplied_bytes

MIB = 1 << 20
_ROW, _COLUMNS, _LEAST_ROWS = 4096, 16, 17
_WORDS = MIB // 8


class Fingerprinter:
    """Computes fingerprints on a device. Made for one operation, so that its factors do not stay on the device."""

    def __init__(self, device: torch.device, *, by_rows: bool | None = None) -> None:
        self.by_rows = _multiplies_bytes(device) if by_rows is None else by_rows
        if self.by_rows:
            self.columns = _odd_bytes().to(device, non_blocking=True)
            self.factors = _odd_numbers(MIB // _ROW * _COLUMNS).to(device, non_blocking=True)
        else:
            self.factors = _odd_numbers(_WORDS).to(device, non_blocking=True)
        self.at_once = 1024 * MIB if self.by_rows else 32 * MIB

    def take(self, flat: Tensor) -> Tensor:
        """The fingerprint of a flat tensor of bytes: a number for every MiB and one for the rest, on its device."""
        whole = flat.numel() // MIB * MIB
        parts = [self._numbers(flat[at : min(at + self.at_once, whole)], MIB) for at in range(0, whole, self.at_once)]
        left = flat.numel() - whole
        if left:
            rest = flat.new_zeros(max(_rounded(left, _ROW), _LEAST_ROWS * _ROW) if self.by_rows else _rounded(left, 8))
            rest[:left].copy_(flat[whole:])
            parts.append(self._numbers(rest, len(rest)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _numbers(self, flat: Tensor, nbytes: int) -> Tensor:
        """A number for every `nbytes` bytes."""
        if self.by_rows:
            words = multiplied_bytes(flat.view(torch.int8).view(-1, _ROW), self.columns.t())
            words = words.view(-1, nbytes // _ROW * _COLUMNS)
            return (words * self.factors[: words.size(1)]).sum(1)
        words = flat.view(torch.int64).view(-1, nbytes // 8)
        folded = words >> 32
        folded &= 0xFFFFFFFF  # clears the sign bits shifted in: with them, a word and its complement would be equal
        folded ^= words
        folded *= self.factors[: words.size(1)]
        return folded.sum(1)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


@cache
def _odd_numbers(count: int) -> Tensor:
    """Pseudorandom odd numbers, the same every time. Kept on the host: copying them is faster than computing them on a
    device."""
    with without_modes():  # the result is cached, so it must not depend on the modes active now
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
    """Whether the device multiplies int8 matrices: NVIDIA GPUs since Turing do."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (7, 5)
