"""Every rank or none: the ranks that hold parts of one state agree on what they do with it, twice.

First on the plan: is it the same call on every rank, and does nobody refuse? Then, when everything is copied and
bound and nothing is let go yet: has it worked everywhere? Each time every rank says a few words to all others; how
many does not depend on the number of tensors. Whoever hears of a rank where it did not work, or hears nothing from
one, rolls back.
"""

from __future__ import annotations

import atexit
import datetime
import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from torch import distributed

from torchmove.errors import MoveFailed, MoveRefused
from torchmove.internals.ddp import timeout_of
from torchmove.planning.plan import Plan, Refusal
from torchmove.surveying.inventory import Composite, Inventory

_MOST_LETTERS = 400  # of a reason that is told to others
_DISTRIBUTED_TENSOR = "torch.distributed.tensor:DTensor"


class Proposal(NamedTuple):
    """What a rank says about its plan."""

    call: str  # what it is about to do
    state: str  # a digest of what it does it with
    names: str
    refusals: tuple[Refusal, ...]


Gather = Callable[[Any], list[Any]]  # what every rank said, in their order


class Agreement:
    """The ranks that hold parts of one state."""

    def __init__(self, ranks: Sequence[int], gather: Gather) -> None:
        self.ranks, self._gather = tuple(ranks), gather

    def agree(self, call: str, plan: Plan) -> None:
        """All of them are about to do the same, and none refuses; or MoveRefused on every one."""
        said: list[Proposal] = self.gather(proposal_of(call, plan), "planning")
        first = said[0]
        for rank, each in self._each(said):
            if (each.call, each.state) != (first.call, first.state):
                raise MoveRefused([_differ(self.ranks[0], first, rank, each)])
        refusals = [
            refusal._replace(path=f"rank {rank}: {refusal.path}")
            for rank, each in self._each(said)
            for refusal in each.refusals
        ]
        if refusals:
            raise MoveRefused(refusals)

    @contextmanager
    def voting(self) -> Iterator[Callable[[], None]]:
        """Gives what to call when all is done here. A block that fails before says so to the others."""
        has_voted = False

        def consent() -> None:
            nonlocal has_voted
            has_voted = True
            self._vote("")

        try:
            yield consent
        except BaseException as error:
            if not has_voted:
                # Our own error is the one to be raised here, whatever the others say.
                with suppress(MoveFailed):
                    self._vote(f"{type(error).__name__}: {error}"[:_MOST_LETTERS])
            raise

    def _vote(self, trouble: str) -> None:
        told = self.gather(trouble, "agreeing")
        troubles = [f"rank {rank}: {each}" for rank, each in self._each(told) if each]
        if troubles:
            raise MoveFailed("agreeing", f"it did not work everywhere: {'; '.join(troubles)}")

    def gather(self, mine: Any, stage: str) -> list[Any]:
        """What every rank says. Raises MoveFailed where one says nothing."""
        try:
            return self._gather(mine)
        except (RuntimeError, OSError, EOFError) as error:
            _groups.pop(self.ranks, None)
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            why = f"a rank of {self._named()} did not answer (it has ended, or did not make the same call): {first}"
            raise MoveFailed(stage, why) from error

    def _each(self, said: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return zip(self.ranks, said, strict=True)

    def _named(self) -> str:
        return f"{self.ranks[0]} to {self.ranks[-1]}" if len(self.ranks) > 4 else ", ".join(map(str, self.ranks))


def proposal_of(call: str, plan: Plan) -> Proposal:
    """The target's kind counts, not its index: each rank has a device of its own."""
    inventory = plan.inventory
    words = [f"{composite.path} to {_place(plan, composite)}" for composite in inventory.composites]
    state = hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()
    refusals = tuple(_short(refusal) for refusal in plan.refusals[:_MOST_REFUSALS])
    return Proposal(f"{call} to {plan.target.type}", state, ", ".join(inventory.roots)[:_MOST_LETTERS], refusals)


def _place(plan: Plan, composite: Composite) -> str:
    """Where a shard goes: what is kept on one rank is kept on all."""
    places = (plan.inventory.number.get(id(part)) for part in composite.parts)
    return next((plan.placement[index].type for index in places if index is not None), "nowhere")


_MOST_REFUSALS = 3  # of each rank


def _short(refusal: Refusal) -> Refusal:
    return Refusal(*(each[:_MOST_LETTERS] for each in refusal))


def _differ(one: int, first: Proposal, other: int, second: Proposal) -> Refusal:
    what = "with other objects, or objects of another structure" if first.call == second.call else f"to {second.call}"
    why = f"rank {one} calls to {first.call} with {first.names}, rank {other} {what}: {second.names}"
    return Refusal("R050", f"rank {other}", why, "make the same call, with the same objects, on every rank")


# ---------------------------------------------------------------- which ranks, and how they hear each other


def agreement_of(inventory: Inventory) -> Agreement | None:
    """The ranks that hold parts of this state; None where it is one process's own."""
    meshes = [composite.tensor.device_mesh for composite in inventory.composites if _is_distributed(composite.tensor)]  # type: ignore[attr-defined]
    ranks = sorted(
        {rank for mesh in {id(mesh): mesh for mesh in meshes}.values() for rank in mesh.mesh.flatten().tolist()}
    )
    return agreement_among(ranks) if len(ranks) > 1 else None


def agreement_among(ranks: Sequence[int]) -> Agreement | None:
    if not distributed.is_available() or not distributed.is_initialized() or len(ranks) < 2:
        return None
    return Agreement(ranks, lambda mine: _gathered(tuple(ranks), mine))


def _is_distributed(tensor: object) -> bool:
    return f"{type(tensor).__module__}:{type(tensor).__qualname__}" == _DISTRIBUTED_TENSOR


# Groups of their own, on the CPU: what is said here does not mix with what the training says to others meanwhile. Each
# with the group of all ranks that it was made from: it ends with that.
_groups: dict[tuple[int, ...], tuple[weakref.ref[Any], Any]] = {}
atexit.register(_groups.clear)  # their threads must end while there still is somebody to wait for them


def _gathered(ranks: tuple[int, ...], mine: Any) -> list[Any]:
    told: list[Any] = [None] * len(ranks)
    distributed.all_gather_object(told, mine, group=_group(ranks))
    return told


def _group(ranks: tuple[int, ...]) -> Any:
    world: Any = distributed.group.WORLD
    made_from, group = _groups.get(ranks, (lambda: None, None))
    if made_from() is not world:
        _groups.pop(ranks, None)
        group = distributed.new_group(list(ranks), timeout=_timeout(), backend="gloo", use_local_synchronization=True)
        _groups[ranks] = (weakref.ref(world), group)
    return group


def _timeout() -> datetime.timedelta:
    """That of the user's own group."""
    group: Any = distributed.group.WORLD
    for kind in ("cpu", "cuda"):
        with suppress(Exception):  # a group need not have a backend for each kind of device
            found = timeout_of(group, kind)
            if found is not None:
                return found
    return datetime.timedelta(minutes=30)
