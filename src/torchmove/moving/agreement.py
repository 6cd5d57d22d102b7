"""Agreement between the ranks that hold parts of one state: all of them move it, or none does.

The ranks exchange messages twice. Before the copy: every rank makes the same call, and no rank refuses. Before the
commit, when everything is copied and the old storages still exist: every rank has succeeded. A message has the same
size for any number of tensors. A rank that hears of a failure, or does not hear from another rank, rolls back.
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
from torchmove.internals.distributed import timeout_of
from torchmove.planning.plan import Plan, Refusal
from torchmove.surveying.inventory import Composite, Inventory

_MOST_LETTERS = 400  # of a reason that is sent to other ranks
_DISTRIBUTED_TENSOR = "torch.distributed.tensor:DTensor"


class Proposal(NamedTuple):
    """What a rank tells the others about its plan."""

    call: str  # the operation and the target
    state: str  # a digest of the sharded tensors and their placement
    names: str
    refusals: tuple[Refusal, ...]


Gather = Callable[[Any], list[Any]]  # all_gather of one object, in the order of the ranks


class Agreement:
    """The ranks that hold parts of one state, and how they exchange objects."""

    def __init__(self, ranks: Sequence[int], gather: Gather) -> None:
        self.ranks, self._gather = tuple(ranks), gather

    def agree(self, call: str, plan: Plan) -> None:
        """Raise MoveRefused on every rank unless all make the same call and none refuses."""
        proposals: list[Proposal] = self.gather(proposal_of(call, plan), "planning")
        first = proposals[0]
        for rank, each in self._by_rank(proposals):
            if (each.call, each.state) != (first.call, first.state):
                raise MoveRefused([_differ(self.ranks[0], first, rank, each)])
        refusals = [
            refusal._replace(path=f"rank {rank}: {refusal.path}")
            for rank, each in self._by_rank(proposals)
            for refusal in each.refusals
        ]
        if refusals:
            raise MoveRefused(refusals)

    @contextmanager
    def voting(self) -> Iterator[Callable[[], None]]:
        """Yield a function to call when this rank has succeeded. If the block fails before that, tell the others."""
        has_voted = False

        def consent() -> None:
            nonlocal has_voted
            has_voted = True
            self._vote("")

        try:
            yield consent
        except BaseException as error:
            if not has_voted:
                # This rank raises its own error, not the one about the vote.
                with suppress(MoveFailed):
                    self._vote(f"{type(error).__name__}: {error}"[:_MOST_LETTERS])
            raise

    def _vote(self, failure: str) -> None:
        votes = self.gather(failure, "agreeing")
        failures = [f"rank {rank}: {each}" for rank, each in self._by_rank(votes) if each]
        if failures:
            raise MoveFailed("agreeing", f"other ranks failed: {'; '.join(failures)}")

    def gather(self, mine: Any, stage: str) -> list[Any]:
        """The objects of all ranks. Raises MoveFailed if a rank does not answer."""
        try:
            return self._gather(mine)
        except (RuntimeError, OSError, EOFError) as error:
            _groups.pop(self.ranks, None)
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            why = f"a rank of {self._named()} did not answer (it ended, or did not make the same call): {first}"
            raise MoveFailed(stage, why) from error

    def _by_rank(self, answers: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return zip(self.ranks, answers, strict=True)

    def _named(self) -> str:
        return f"{self.ranks[0]} to {self.ranks[-1]}" if len(self.ranks) > 4 else ", ".join(map(str, self.ranks))


def proposal_of(call: str, plan: Plan) -> Proposal:
    """This rank's proposal. It names the target's type without its index, since each rank has its own device."""
    inventory = plan.inventory
    lines = [f"{composite.path} to {_place(plan, composite)}" for composite in inventory.composites]
    state = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
    refusals = tuple(_short(refusal) for refusal in plan.refusals[:_MOST_REFUSALS])
    return Proposal(f"{call} to {plan.target.type}", state, ", ".join(inventory.roots)[:_MOST_LETTERS], refusals)


def _place(plan: Plan, composite: Composite) -> str:
    """The device type that a shard goes to, so that what one rank keeps every rank keeps."""
    places = (plan.inventory.number.get(id(part)) for part in composite.parts)
    return next((plan.placement[index].type for index in places if index is not None), "nowhere")


_MOST_REFUSALS = 3  # of each rank


def _short(refusal: Refusal) -> Refusal:
    return Refusal(*(each[:_MOST_LETTERS] for each in refusal))


def _differ(one: int, first: Proposal, other: int, second: Proposal) -> Refusal:
    call = f"'{second.call}' with" if first.call != second.call else "the same call with other objects or structure:"
    why = f"rank {one} makes the call '{first.call}' with {first.names}, rank {other} makes {call} {second.names}"
    return Refusal("R050", f"rank {other}", why, "make the same call with the same objects on every rank")


# ---------------------------------------------------------------- process groups


def agreement_of(inventory: Inventory) -> Agreement | None:
    """The agreement of the ranks that hold parts of this state; None if this process holds all of it."""
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


# Separate gloo groups on the CPU, so that these messages do not mix with the collectives of the training. Each is kept
# with the world group it was made from, and is valid as long as that.
_groups: dict[tuple[int, ...], tuple[weakref.ref[Any], Any]] = {}
atexit.register(_groups.clear)  # their threads must end before the interpreter does


def _gathered(ranks: tuple[int, ...], mine: Any) -> list[Any]:
    gathered: list[Any] = [None] * len(ranks)
    distributed.all_gather_object(gathered, mine, group=_group(ranks))
    return gathered


def _group(ranks: tuple[int, ...]) -> Any:
    world: Any = distributed.group.WORLD
    made_from, group = _groups.get(ranks, (lambda: None, None))
    if made_from() is not world:
        _groups.pop(ranks, None)
        group = distributed.new_group(list(ranks), timeout=_timeout(), backend="gloo", use_local_synchronization=True)
        _groups[ranks] = (weakref.ref(world), group)
    return group


def _timeout() -> datetime.timedelta:
    """The timeout of the user's default group."""
    group: Any = distributed.group.WORLD
    for kind in ("cpu", "cuda"):
        with suppress(Exception):  # a group need not have a backend for each device type
            found = timeout_of(group, kind)
            if found is not None:
                return found
    return datetime.timedelta(minutes=30)
