"""The devices that holders remember, written anew: an attribute, an entry, a key, a closure's cell."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from torchmove import _paths
from torchmove._records import DeviceValue, Repoint
from torchmove._storage import is_scripted, set_attribute
from torchmove._stored import contents, refill
from torchmove._undo import Undo


def repoint_all(repoints: Sequence[Repoint], undo: Undo) -> None:
    for value, new in repoints:
        if value.how is _paths.KEY:
            _rename_key(value, new, undo)
        else:
            undo.append(lambda value=value: _write(value, value.value))  # type: ignore[misc]
            _write(value, new)


def _write(value: DeviceValue, device: Any) -> None:
    holder = value.holder
    if value.how is _paths.CELL:
        holder.__closure__[value.what].cell_contents = device
    elif isinstance(holder, dict):
        dict.__setitem__(holder, value.what, device)
    elif isinstance(holder, list):
        list.__setitem__(holder, value.what, device)
    elif isinstance(holder, deque):
        deque.__setitem__(holder, value.what, device)
    elif is_scripted(holder):
        set_attribute(holder, value.what, device)
    else:
        # Past any __setattr__ of the class: a frozen dataclass remembers a device too.
        object.__setattr__(holder, value.what, device)


def _rename_key(value: DeviceValue, new: Any, undo: Undo) -> None:
    """In place and in order: the dict is filled anew. Half filled it has lost entries, so the way back has them all."""
    holder = value.holder
    entries = contents(holder)
    undo.append(partial(refill, holder, entries))
    refill(holder, [(new if key == value.value else key, entry) for key, entry in entries])
