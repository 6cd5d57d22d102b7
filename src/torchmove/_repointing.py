"""The devices that holders remember, written anew: an attribute, an entry, a key, a closure's cell."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from torchmove import _paths
from torchmove._records import DeviceValue, Repoint
from torchmove._storage import is_scripted, set_attribute
from torchmove._undo import Undo


def repoint_all(repoints: Sequence[Repoint], undo: Undo) -> None:
    for value, new in repoints:
        undo.append(lambda value=value, new=new: _write(value, old=new, new=value.value))  # type: ignore[misc]
        _write(value, old=value.value, new=new)


def _write(value: DeviceValue, *, old: Any, new: Any) -> None:
    holder = value.holder
    if value.how is _paths.CELL:
        holder.__closure__[value.what].cell_contents = new
    elif value.how is _paths.KEY:
        _rename_key(holder, old, new)
    elif isinstance(holder, dict):
        dict.__setitem__(holder, value.what, new)
    elif isinstance(holder, list):
        list.__setitem__(holder, value.what, new)
    elif isinstance(holder, deque):
        deque.__setitem__(holder, value.what, new)
    elif is_scripted(holder):
        set_attribute(holder, value.what, new)
    else:
        # Past any __setattr__ of the class: a frozen dataclass remembers a device too.
        object.__setattr__(holder, value.what, new)


def _rename_key(holder: dict[Any, Any], old: Any, new: Any) -> None:
    """In place and in order. An OrderedDict keeps its order beside the dict, and has to be told of it."""
    kind = OrderedDict if isinstance(holder, OrderedDict) else dict
    entries = [(new if key == old else key, entry) for key, entry in kind.items(holder)]
    kind.clear(holder)
    for key, entry in entries:
        kind.__setitem__(holder, key, entry)
