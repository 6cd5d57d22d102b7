"""Storages, watched: who holds them, and are they still alive?"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import repeat
from operator import attrgetter, or_
from typing import Any

import torch
from torch import Tensor, UntypedStorage

_cdata = attrgetter("_cdata")


def storage_key(holder: Tensor | UntypedStorage) -> int | None:
    """What tells the storage of a tensor apart from all others; None where it shows none."""
    try:
        storage = holder.untyped_storage() if isinstance(holder, Tensor) else holder
        return int(storage._cdata)
    except Exception:  # a parameter that waits for its shape, or a class of its own, refuses in its own way
        return None


def storage_device(storage: Any) -> torch.device:
    """The device of a storage. A TypedStorage warns whenever it is asked for anything by its public names."""
    return getattr(storage, "_untyped_storage", storage).device  # type: ignore[no-any-return]


def held_elsewhere(storages: Sequence[UntypedStorage], tensors: int = 0) -> Iterable[bool]:
    """Does anybody hold each storage, besides the given list and so many tensors that look at it?"""
    holders = list(map(torch._C._storage_Use_Count, map(_cdata, storages)))
    # The Python object in the list holds it too. A storage has one such object: whoever else has that is seen in the
    # object's count, and not in the storage's.
    references, ours = list(map(sys.getrefcount, storages)), _references_of_ours(seen=tensors > 0)
    if sum(holders) == len(storages) * (tensors + 1) and sum(references) == len(storages) * ours:
        return repeat(False, len(storages))  # none has fewer, so none has more
    return map(or_, map((tensors + 1).__lt__, holders), map(ours.__lt__, references))


@cache
def _references_of_ours(*, seen: bool) -> int:
    """How many references `map` counts to an object of which only one list knows, and a tensor, if it is seen by any.
    Newer versions of torch count that."""
    tensor = torch.empty(1, device="cpu")
    alone = [tensor.untyped_storage()]
    if not seen:
        del tensor
    (count,) = map(sys.getrefcount, alone)
    return count


def is_sole_owner(window: Tensor) -> bool:
    """Is the memory behind a tensor torch's own, not lent by numpy or a file, and does nobody else hold it?"""
    storages = [window.untyped_storage()]
    return storages[0].resizable() and not any(held_elsewhere(storages, tensors=1))


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
