"""Do what the plan says: copy everything, then commit. Decides nothing.

Until the commit the source is untouched, and a failure only has to let go of the copies. The commit makes every tensor
look at its copy; each step of it is on an undo list before it is taken, and Ctrl-C waits until it is over. Whatever
fails in between, the list is run backwards and the state is what it was.
"""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from torch import nn

from torchmove import _devices, _paths
from torchmove._errors import MoveFailed, MoveRefused, TorchmoveError
from torchmove._held import OldStorages
from torchmove._interrupts import HeldInterrupts
from torchmove._records import DeviceValue, Mover, Plan, Receipt, Repoint, Shell, Verdict, Window
from torchmove._storage import (
    Gradients,
    Rebinding,
    Undo,
    cut,
    plain_torch,
    rebind,
    rebinding,
    shell_rebinding,
    windows_of,
)

Proof = Callable[[Sequence[Window]], Verdict | None]


def apply(plan: Plan, mover: Mover, *, proof: Proof) -> Receipt:
    """Move, or change nothing. `proof` is asked before the old copy is let go; what it raises rolls the move back."""
    if plan.refusals:
        raise MoveRefused(plan.refusals)
    began = time.perf_counter()
    with plain_torch():
        old, windows = OldStorages(plan), windows_of(plan.inventory.slots)
        rebindings = _copies(plan, windows, mover)
        verdict = _commit(plan, rebindings, lambda: proof(windows))
        seconds = time.perf_counter() - began
        # From here on nothing of ours holds the old storages: what is still alive is held by others.
        del rebindings
        held = old.held()
    return Receipt(plan.archived(), mover.name, seconds, held, tuple(windows), verdict)


def _copies(plan: Plan, windows: Sequence[Window], mover: Mover) -> list[Rebinding]:
    slots, copies = plan.inventory.slots, []
    moving = _moving(plan)
    try:
        copies = mover.copy(plan.moves, slots)
        _wait_for(plan)
        return [
            rebinding(slots[index].tensor, cut(base, slots[index].tensor, windows[index], move.block), moving=moving)
            for move, base in zip(plan.moves, copies, strict=True)
            for index in move.block.slots
        ]
    except BaseException as error:
        copies.clear()
        _roll_back(plan, [], error, "copying")


def _moving(plan: Plan) -> set[int]:
    return {id(plan.inventory.slots[index].tensor) for move in plan.moves for index in move.block.slots}


def _wait_for(plan: Plan) -> None:
    """A copy that is still under way would be read too early by whoever comes first."""
    for device in {move.target for move in plan.moves} | {move.block.device for move in plan.moves}:
        _devices.synchronize(device)


def _commit(plan: Plan, rebindings: list[Rebinding], proof: Callable[[], Verdict | None]) -> Verdict | None:
    undo: Undo = []
    with HeldInterrupts() as interrupts:
        try:
            _rebind_all(plan, rebindings, undo)
            _repoint_all(plan.repoints, undo)
            _settle(plan)
            verdict = proof()
            if interrupts.breaks_off:
                interrupts.pending = False
                raise KeyboardInterrupt
        except BaseException as error:
            rebindings.clear()
            _roll_back(plan, undo, error, "committing")
        undo.clear()
    return verdict


def _roll_back(plan: Plan, undo: Undo, error: BaseException, stage: str) -> NoReturn:
    for step in reversed(undo):
        step()
    undo.clear()
    # The frames that failed still hold the copies; the error outlives them.
    traceback.clear_frames(error.__traceback__)
    with suppress(Exception):  # a card that has failed fails here too; what matters is the first error
        for device in {move.target for move in plan.moves}:
            _devices.give_back_cache(device)
    if isinstance(error, Exception) and not isinstance(error, TorchmoveError):
        raise MoveFailed(stage, f"{type(error).__name__}: {error}") from error
    raise error


# ---------------------------------------------------------------- the steps of the commit


def _rebind_all(plan: Plan, rebindings: Sequence[Rebinding], undo: Undo) -> None:
    shells = _moving_shells(plan)
    swapped = shells or any(each.by_swap for each in rebindings)
    tensors = [*(each.tensor for each in rebindings), *(shell.tensor for shell in shells)]
    gradients = Gradients(tensors if swapped else ())
    undo.append(gradients.set)  # the first on the list is the last to run: both sides are back by then
    for each in rebindings:
        rebind(each, undo)
    # Parts have their new windows by now.
    for shell in shells:
        rebind(shell_rebinding(shell.tensor, shell.rebuild()), undo)
    gradients.set()


def _moving_shells(plan: Plan) -> list[Shell]:
    """Those with a part that moves, the innermost first: it was found last."""
    moving = _moving(plan)
    shells = []
    for shell in reversed(plan.inventory.shells):
        if any(id(part) in moving for part in shell.parts):
            moving.add(id(shell.tensor))
            shells.append(shell)
    return shells


def _repoint_all(repoints: Sequence[Repoint], undo: Undo) -> None:
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


def _settle(plan: Plan) -> None:
    """Modules that do work of their own when they are moved get their chance, with nothing left to move."""
    if not plan.moves:
        return
    inventory = plan.inventory
    shared = {id(inventory.slots[i].tensor) for block in inventory.blocks if len(block.slots) > 1 for i in block.slots}
    for holder, _ in inventory.holders.values():
        if not isinstance(holder, nn.Module) or type(holder)._apply is nn.Module._apply:
            continue
        # A recurrent module makes its weights one flat piece of memory. Where they share memory already, they are that
        # piece, or part of one that others look at too.
        if isinstance(holder, nn.RNNBase) and not shared.isdisjoint(map(id, holder._flat_weights)):
            continue
        holder._apply(lambda tensor: tensor)  # type: ignore[no-untyped-call]
