"""The table of movers, and which one is taken. All of them copy the same bytes; they differ in how fast."""

from __future__ import annotations

from torchmove._records import Mover
from torchmove.movers.plain import Plain

_TABLE: dict[str, Mover] = {"plain": Plain()}


def choose(name: str) -> Mover:
    """The mover of a name; "auto" takes the best for this machine. Raises KeyError with the names there are."""
    if name == "auto":
        return _TABLE["plain"]
    if name not in _TABLE:
        raise KeyError(f"there is no mover {name!r}; there are {', '.join(['auto', *_TABLE])}")
    return _TABLE[name]
