"""torch's own word: the file is loaded weights-only, from the map of the file, and what comes is what was read."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from torchmove.checkpoints.contents import Entry, shown
from torchmove.checkpoints.refusing import Unfit, in_a_line
from torchmove.surveying.paths import ATTRIBUTE, CALL, MEMBER, Path


def judge(file: str | os.PathLike[str], byteorder: str, entries: Iterable[Entry], *, anywhere: bool) -> bool:
    """Raises Unfit where torch disagrees. `anywhere`: it must load on a machine that has nothing but a CPU.

    False: not asked. To load a file of the other byte order, torch turns all its bytes around, in memory.
    """
    if byteorder != sys.byteorder:
        return False
    loaded = _loaded(file, None if anywhere else "cpu")
    storages: dict[int, int] = {}
    for entry in entries:
        tensor = _fetched(entry.path, loaded)
        if tensor is None:
            continue
        if _seen(tensor) != (entry.dtype, entry.shape, entry.stride, entry.offset):
            raise Unfit("R071", "torch loads another tensor than what was read", inside=shown(entry.path))
        address = 0 if entry.storage is None else tensor.untyped_storage().data_ptr()
        if address and storages.setdefault(entry.storage or 0, address) != address:
            raise Unfit("R071", "torch does not load it into the storage it shares", inside=shown(entry.path))
    if len(set(storages.values())) != len(storages):
        raise Unfit("R071", "torch loads two storages into one")
    return True


def _loaded(file: str | os.PathLike[str], location: str | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a pickle protocol that is not the usual one
        try:
            return torch.load(file, map_location=location, weights_only=True, mmap=True)
        except Exception as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise Unfit("R071", f"torch does not load it weights-only: {in_a_line(said[0])}") from None


def _fetched(path: Path, loaded: Any) -> Any:
    """The tensor at a path. None: it leads through an object or a set, where Python has its own way."""
    foreign = (MEMBER, CALL, ATTRIBUTE)
    if any(step.how in foreign for step in path.steps()):
        return None
    try:
        value = path.fetch({"": loaded})
    except (LookupError, TypeError):  # also under a key that is not equal to itself
        raise Unfit("R071", "torch does not load it where it was read", inside=shown(path)) from None
    return value if isinstance(value, torch.Tensor) else None


def _seen(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
