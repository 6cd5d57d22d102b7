"""Fingerprints: are the bytes on the device still those of the host copy?

A number for every MiB, taken as 64-bit words: each word is folded, so that its high bits matter as much as its low
ones, multiplied by an odd factor of its own place, and all are added, modulo 2**64. A single change is always seen;
what has changed places, or any other change, is missed with the chance of two random numbers being the same. It is
done a few MiB at a time, which stay in the device's cache, and nothing is waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIB = 1 << 20
_WORDS = MIB // 8
_AT_ONCE = 32 * MIB


def factors_on(device: torch.device) -> Tensor:
    """An odd number for each place in a MiB: as good as random, and the same every time. For one task; not kept."""
    mixed = torch.arange(1, _WORDS + 1, device=device)
    for factor, shift in ((-7046029254386353131, 29), (-4658895280553007687, 32)):
        mixed *= factor
        mixed ^= mixed >> shift
    mixed |= 1
    return mixed


def fingerprint(flat: Tensor, factors: Tensor) -> Tensor:
    """Of a flat tensor of bytes: a number for every MiB, and one for what is left, on its device."""
    whole = flat.numel() // MIB * MIB
    parts = []
    for start in range(0, whole, _AT_ONCE):
        words = flat[start : min(start + _AT_ONCE, whole)].view(torch.int64)
        parts.append(_numbers(words.view(-1, _WORDS), factors))
    left = flat.numel() - whole
    if left:
        rest = flat.new_zeros(-(-left // 8) * 8)
        rest[:left].copy_(flat[whole:])
        words = rest.view(torch.int64).view(1, -1)
        parts.append(_numbers(words, factors[: words.size(1)]))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _numbers(words: Tensor, factors: Tensor) -> Tensor:
    folded = words >> 32
    folded &= 0xFFFFFFFF  # what was shifted in is the sign: with it, a word and its complement would become the same
    folded ^= words
    folded *= factors
    return folded.sum(1)
