"""Storages, watched: who holds them, and are they still alive?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter, gt
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


def held_elsewhere(storages: Sequence[UntypedStorage], counts: Sequence[int]) -> Iterator[bool]:
    """Does anybody hold each storage, besides the tensors of the state, so many, that look at it?"""
    held = map(torch._C._storage_Use_Count, map(_cdata, storages))
    # The Python object that was given here holds it too.
    return map(gt, held, map((1).__add__, counts))


def is_sole_owner(storage: UntypedStorage, *, besides: int) -> bool:
    """Is the memory of a storage torch's own, not lent by numpy or a file, and does nobody look at it, besides so many
    tensors?"""
    return storage.resizable() and torch._C._storage_Use_Count(storage._cdata) <= 1 + besides


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
