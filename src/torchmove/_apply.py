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
from itertools import compress
from operator import eq
from typing import Any, NamedTuple, NoReturn

from torch import Tensor, nn

from torchmove import _devices, _paths
from torchmove._collector import without_collector
from torchmove._errors import MoveFailed, TorchmoveError
from torchmove._freeing import let_go
from torchmove._held import OldStorages
from torchmove._interrupts import HeldInterrupts
from torchmove._records import Advance, DeviceValue, Load, Mover, Plan, Receipt, Repoint, Shell, Verdict, Windows
from torchmove._storage import (
    Gradients,
    Rebinding,
    can_rebind_dense,
    cut,
    load_of,
    plain_torch,
    rebind,
    rebind_dense,
    rebinding,
    shell_rebinding,
    windows_of,
)
from torchmove._undo import Undo, put_back

Proof = Callable[[Windows], Verdict | None]


class _Copies(NamedTuple):
    """What the commit will make the tensors look at: dense ones at their copies, all others through windows."""

    sources: list[Tensor]
    copies: list[Tensor]
    rebindings: list[Rebinding]

    def clear(self) -> None:
        for column in self:
            column.clear()


def apply(plan: Plan, mover: Mover, *, why: str, began: float, advance: Advance, proof: Proof) -> Receipt:
    """Move, or change nothing. `proof` is asked before the old copy is let go; what it raises rolls the move back."""
    with plain_torch(), without_collector():
        old, windows = OldStorages(plan), windows_of(plan.inventory.slots)
        try:
            copies = _copy(plan, windows, mover, advance)
            verdict = _commit(plan, copies, lambda: proof(windows))
            # From here on nothing of ours holds the old storages: what is still alive is held by others.
            del copies
            held = old.held()
        finally:
            old.forget()
        return Receipt(plan.archived(), mover.name, why, time.perf_counter() - began, held, windows, verdict)


def _copy(plan: Plan, windows: Windows, mover: Mover, advance: Advance) -> _Copies:
    made = _Copies([], [], [])
    copied: list[Tensor] = []
    try:
        load = load_of(plan.moves, plan.inventory.slots)
        copied = mover.copy(load, advance)
        _wait_for(plan)
        _sort(plan, windows, load, copied, made)
    except BaseException as error:
        copied.clear()
        made.clear()
        _roll_back(plan, [], error, "copying")
    return made


def _sort(plan: Plan, windows: Windows, load: Load, copied: Sequence[Tensor], made: _Copies) -> None:
    """Tell the dense, which are many and simple, from those whose windows have to be cut."""
    dense = list(load.dense)
    strides = (windows.strides[first] for first in compress(plan.moves.firsts, dense))
    if not all(map(eq, strides, map(Tensor.stride, compress(copied, dense)))):
        places = zip(plan.moves.firsts, dense, copied, strict=True)
        dense = [each and copy.stride() == windows.strides[first] for first, each, copy in places]
    for indices in plan.moves.ways.values():
        one = next((index for index in indices if dense[index]), None)
        if one is not None and not can_rebind_dense(load.sources[one], copied[one]):
            for index in indices:
                dense[index] = False
    made.sources.extend(compress(load.sources, dense))
    made.copies.extend(compress(copied, dense))
    others = [index for index, is_so in enumerate(dense) if not is_so]
    moving = _moving(plan) if others else set()
    for index in others:
        block, copy = plan.moves[index].block, copied[index]
        for slot in block.slots:
            tensor = plan.inventory.slots.tensors[slot]
            window = cut(copy, tensor, windows.of(slot), block)
            made.rebindings.append(rebinding(tensor, window, moving=moving))


def _moving(plan: Plan) -> set[int]:
    tensors = plan.inventory.slots.tensors
    return {id(tensors[index]) for index in plan.moves.slots()}


def _wait_for(plan: Plan) -> None:
    """A copy that is still under way would be read too early by whoever comes first."""
    for device in {device for way in plan.moves.ways for device in way}:
        _devices.synchronize(device)


def _commit(plan: Plan, copies: _Copies, proof: Callable[[], Verdict | None]) -> Verdict | None:
    undo: Undo = []
    with HeldInterrupts() as interrupts:
        try:
            old = _rebind_all(plan, copies, undo)
            repoint_all(plan.repoints, undo)
            _settle(plan)
            verdict = proof()
            if interrupts.breaks_off:
                interrupts.pending = False
                raise KeyboardInterrupt
        except BaseException as error:
            copies.rebindings.clear()
            copies.copies.clear()
            _roll_back(plan, undo, error, "committing")
        undo.clear()
        let_go(old)
    return verdict


def _roll_back(plan: Plan, undo: Undo, error: BaseException, stage: str) -> NoReturn:
    failed = put_back(undo)
    # The frames that failed still hold the copies; the error outlives them.
    traceback.clear_frames(error.__traceback__)
    with suppress(Exception):  # a card that has failed fails here too; what matters is the first error
        for device in {target for _, target in plan.moves.ways}:
            _devices.give_back_cache(device)
    if failed:
        raise MoveFailed(stage, f"{type(error).__name__}: {error}", not_undone=failed) from error
    if isinstance(error, Exception) and not isinstance(error, TorchmoveError):
        raise MoveFailed(stage, f"{type(error).__name__}: {error}") from error
    raise error


# ---------------------------------------------------------------- the steps of the commit


def _rebind_all(plan: Plan, made: _Copies, undo: Undo) -> list[Tensor]:
    """Returns what the dense ones looked at before."""
    shells = _moving_shells(plan)
    swapped = shells or any(each.by_swap for each in made.rebindings)
    tensors = [*made.sources, *(each.tensor for each in made.rebindings), *(shell.tensor for shell in shells)]
    gradients = Gradients(tensors if swapped else ())
    undo.append(gradients.set)  # the first on the list is the last to run: both sides are back by then
    old = rebind_dense(made.sources, made.copies, undo)
    for each in made.rebindings:
        rebind(each, undo)
    # Parts have their new windows by now.
    for shell in shells:
        rebind(shell_rebinding(shell.tensor, shell.rebuild()), undo)
    gradients.set()
    return old


def _moving_shells(plan: Plan) -> list[Shell]:
    """Those with a part that moves, the innermost first: it was found last."""
    moving = _moving(plan) if plan.inventory.shells else set()
    shells = []
    for shell in reversed(plan.inventory.shells):
        if any(id(part) in moving for part in shell.parts):
            moving.add(id(shell.tensor))
            shells.append(shell)
    return shells


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
    tensors = inventory.slots.tensors
    shared = {id(tensors[index]) for block in inventory.blocks.shared() for index in block.slots}
    for holder, _ in inventory.holders.values():
        if not isinstance(holder, nn.Module) or type(holder)._apply is nn.Module._apply:
            continue
        # A recurrent module makes its weights one flat piece of memory. Where they share memory already, they are that
        # piece, or part of one that others look at too.
        if isinstance(holder, nn.RNNBase) and not shared.isdisjoint(map(id, holder._flat_weights)):
            continue
        holder._apply(lambda tensor: tensor)  # type: ignore[no-untyped-call]
