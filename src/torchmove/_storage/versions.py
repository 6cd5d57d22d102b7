"""Version counters, by which autograd notices in-place writes.

Views share the counter of their base, and so do tensors that were detached from one another; `tensor.data` has its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def by_counter(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The indices of tensors that share a version counter, a list for each counter that several share.

    Torch does not say whose counter a tensor has. So each is set to a number that no other has, and those that show it
    too share it; all are set back at once.
    """
    counted = [index for index, tensor in enumerate(tensors) if not tensor.is_inference()]
    before = [tensors[index]._version for index in counted]
    found: dict[int, list[int]] = {}
    try:
        for number, index in enumerate(counted, start=max(before, default=0) + 1):
            _set_version(tensors[index], number)
        for index in counted:
            found.setdefault(tensors[index]._version, []).append(index)
    finally:
        for index, version in zip(counted, before, strict=True):
            _set_version(tensors[index], version)
    return [indices for indices in found.values() if len(indices) > 1]


def set_version_of(tensor: Tensor, like: Tensor) -> None:
    if not like.is_inference():
        _set_version(tensor, like._version)


def _set_version(tensor: Tensor, version: int) -> None:
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
