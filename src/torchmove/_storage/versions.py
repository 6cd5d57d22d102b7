"""Version counters, by which autograd notices in-place writes.

Views share the counter of their base, and so do tensors that were detached from one another; `tensor.data` has its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchmove._switch import Switch


def by_counter(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The indices of tensors that share a version counter, a list for each counter that several share.

    Torch does not say whose counter a tensor has. So each is set to a number that no other has, and those that show it
    too share it; all are set back at once.
    """
    counted = [index for index, tensor in enumerate(tensors) if not tensor.is_inference()]
    found: dict[int, list[int]] = {}
    with _Numbered([tensors[index] for index in counted]) as numbered, numbered:
        for index in counted:
            found.setdefault(tensors[index]._version, []).append(index)
    return [indices for indices in found.values() if len(indices) > 1]


class _Numbered(Switch):
    """While open, each version counter of some tensors shows a number of its own."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._before = tuple([tensor._version for tensor in tensors])

    def switch(self) -> None:
        first = max(self._before, default=0) + 1
        _set_versions(self._tensors, tuple(range(first, first + len(self._tensors))))

    def restore(self) -> None:
        _set_versions(self._tensors, self._before)


def set_version_of(tensor: Tensor, like: Tensor) -> None:
    if not like.is_inference():
        _set_versions((tensor,), (like._version,))


def _set_versions(tensors: tuple[Tensor, ...], versions: tuple[int, ...]) -> None:
    torch._C._autograd._unsafe_set_version_counter(tensors, versions)
