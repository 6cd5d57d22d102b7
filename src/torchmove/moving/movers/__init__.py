"""The table of movers, and which one is taken. All of them copy the same bytes; they differ in how fast."""

from __future__ import annotations

from typing import NamedTuple

from torchmove.moving.batches import Mover
from torchmove.moving.movers import staged
from torchmove.moving.movers.plain import Plain
from torchmove.moving.movers.staged import Staged
from torchmove.planning.plan import Moves

_TABLE: dict[str, Mover] = {"plain": Plain(), "staged": Staged()}


class Choice(NamedTuple):
    mover: Mover
    why: str


class NoSuchMover(Exception):
    """There is none of that name, or it cannot carry this; says why."""


def choose_mover(name: str, moves: Moves) -> Choice:
    """The mover of a name for some moves; "auto" takes the fastest that can carry them. Raises NoSuchMover."""
    if name == "auto":
        return _fastest(moves)
    if name not in _TABLE:
        raise NoSuchMover(f"there is no mover {name!r}; there are {', '.join(['auto', *_TABLE])}")
    reason = staged.unfit(moves) if name == "staged" else ""
    if reason:
        raise NoSuchMover(reason)
    return Choice(_TABLE[name], "as asked")


def _fastest(moves: Moves) -> Choice:
    if not staged.devices(moves):
        return Choice(_TABLE["plain"], "nothing moves between cpu and cuda")
    if not staged.worth(moves):
        return Choice(_TABLE["plain"], "too little to be staged")
    reason = staged.unfit(moves)
    return Choice(_TABLE["plain"], reason) if reason else Choice(_TABLE["staged"], "between cpu and cuda")
