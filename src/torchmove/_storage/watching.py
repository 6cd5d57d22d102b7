"""Storages, watched: who holds them, and are they still alive?"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, UntypedStorage

_cdata = attrgetter("_cdata")


def storage_key(holder: Tensor | UntypedStorage) -> int | None:
    """What tells the storage of a tensor apart from all others; None where it shows none."""
    try:
        storage = holder.untyped_storage() if isinstance(holder, Tensor) else holder
        return int(storage._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def held_elsewhere(tensors: Sequence[Tensor], counts: Sequence[int]) -> list[bool]:
    """Does anybody hold the storage behind each tensor, besides the tensors of the state, so many, that look at it?"""
    storages = list(map(Tensor.untyped_storage, tensors))
    held = map(torch._C._storage_Use_Count, map(_cdata, storages))
    # Each of our own Python objects here holds it too.
    return [count > known + 1 for count, known in zip(held, counts, strict=True)]


def is_own(tensor: Tensor) -> bool:
    """Is the memory behind a tensor torch's own, not lent by numpy or a file?"""
    return tensor.untyped_storage().resizable()


def is_sole_owner(tensor: Tensor) -> bool:
    """Is the memory behind a tensor torch's own, and does nobody else look at it?"""
    return is_own(tensor) and not held_elsewhere([tensor], [1])[0]


class Watch:
    """Tells whether a storage is still alive, without keeping it so."""

    _weak: Any = None

    def __init__(self, storage: UntypedStorage) -> None:
        self.storage = storage._cdata
        self._weak = storage._weak_ref()

    def alive(self) -> bool:
        return not UntypedStorage._expired(self._weak)

    def __del__(self) -> None:
        if self._weak is not None:
            UntypedStorage._free_weak_ref(self._weak)  # type: ignore[no-untyped-call]
