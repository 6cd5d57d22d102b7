"""The movers by name, and the choice among them. All of them copy the same bytes; they differ in speed."""

from __future__ import annotations

from typing import NamedTuple

from torchmove.moving.movers import staged
from torchmove.moving.movers.copies import Mover, Plain
from torchmove.moving.movers.staged import Staged
from torchmove.planning.plan import Moves

_TABLE: dict[str, Mover] = {"plain": Plain(), "staged": Staged()}


class Choice(NamedTuple):
    """A mover, and why it was chosen."""

    mover: Mover
    why: str


class NoSuchMover(Exception):
    """No mover has that name, or it cannot make these copies; the message says why."""


def choose_mover(name: str, moves: Moves) -> Choice:
    """The mover of a name; "auto" chooses the fastest for these moves. Raises NoSuchMover."""
    if name == "auto":
        return _fastest(moves)
    if name not in _TABLE:
        raise NoSuchMover(f"unknown mover {name!r}; the movers are {', '.join(['auto', *_TABLE])}")
    reason = staged.why_not(moves) if name == "staged" else ""
    if reason:
        raise NoSuchMover(reason)
    return Choice(_TABLE[name], "as requested")


def _fastest(moves: Moves) -> Choice:
    if not staged.devices(moves):
        return Choice(_TABLE["plain"], staged.NOT_CPU_CUDA)
    if not staged.is_faster(moves):
        return Choice(_TABLE["plain"], "too small for staging")
    reason = staged.why_not(moves)
    return Choice(_TABLE["plain"], reason) if reason else Choice(_TABLE["staged"], "CPU-CUDA, through pinned memory")
