"""Carry out a plan: copy everything, then commit. Nothing is decided here.

Until the commit the source is untouched, and a failure only drops the copies. The commit rebinds every tensor to its
copy and rewrites the devices that holders remember. Each step is on an undo list before it is taken, and signals wait
until the commit is over; after a failure the list is run backwards and the state is what it was.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from torchmove.devices import release_cached_memory, synchronize_device
from torchmove.errors import MoveFailed, TorchmoveError
from torchmove.internals.guards import HeldInterrupts, Undo, plain_torch, without_collector
from torchmove.internals.rebinding import (
    Accumulators,
    Gradients,
    Rebinding,
    can_rebind_dense,
    composite_rebinding,
    rebind,
    rebind_dense,
    rebinding,
    with_shared_versions,
)
from torchmove.internals.scripted import ScriptedAttributes, is_scripted, set_attribute
from torchmove.internals.storages import AT_ONCE, View, dressed, view_of_all, view_on
from torchmove.internals.stored import contents, refill
from torchmove.moving.leftovers import OldStorages
from torchmove.moving.movers.copies import Advance, CopyBatch, Mover, batch_of
from torchmove.moving.own_apply import call_overrides, has_overrides
from torchmove.moving.receipt import Receipt
from torchmove.planning.plan import Plan, Repoint
from torchmove.progress import Stages
from torchmove.surveying.inventory import Composite, RememberedDevice, StateStorage
from torchmove.surveying.paths import CELL, KEY

if TYPE_CHECKING:
    from torchmove.verifying.verify import Verdict


def repoint_all(repoints: Sequence[Repoint], undo: Undo) -> None:
    """Write remembered devices anew: in an attribute, an entry, a key or a closure's cell."""
    for value, new in repoints:
        if value.how is KEY:
            _rename_key(value, new, undo)
        else:
            undo.append(lambda value=value: _write(value, value.value))  # type: ignore[misc]
            _write(value, new)


def _write(value: RememberedDevice, device: Any) -> None:
    holder = value.holder
    if value.how is CELL:
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
        # Bypasses the class's __setattr__: a frozen dataclass can hold a device too.
        object.__setattr__(holder, value.what, device)


def _rename_key(value: RememberedDevice, new: Any, undo: Undo) -> None:
    """Rename a key in place, keeping the order: the dict is refilled. Undo refills all entries, since a dict that was
    refilled halfway has lost some."""
    holder = value.holder
    entries = contents(holder)
    undo.append(partial(refill, holder, entries))
    refill(holder, [(new if key == value.value else key, entry) for key, entry in entries])


Verify = Callable[[Plan], "Verdict | None"]  # takes the plan as it was carried out


class Job(NamedTuple):
    """A plan, its mover and the reason for it, and the verification to run before the old copy is freed."""

    plan: Plan
    mover: Mover
    why: str
    verify: Verify


class _Copies(NamedTuple):
    """The copies that the commit rebinds the tensors to: dense tensors to a copy each, all others to views of one."""

    places: list[int]  # the indices of the dense tensors
    sources: list[Tensor]
    copies: list[Tensor]  # emptied by the commit
    cut: list[int]  # for each other storage, the index of a tensor on it
    rebindings: list[Rebinding]

    def clear(self) -> None:
        for column in self:
            column.clear()


@plain_torch
@without_collector
def apply_jobs(*jobs: Job, began: float, advance: Advance, consent: Callable[[], None] = lambda: None) -> list[Receipt]:
    """Move all of them, or change nothing. An error in a verification or in `consent`, which is called last, rolls
    everything back; after that the move is final."""
    stages = Stages()
    stages.begin("copy")
    copies = _copy(jobs, advance)
    plans, verdicts, old = _commit(jobs, copies, consent, stages)
    try:
        left = [each.held(time.perf_counter() - began) for each in old]
    finally:
        for each in old:
            each.forget()
    seconds, done = time.perf_counter() - began, stages.end()
    return [
        Receipt(plan.archived(), job.mover.name, job.why, seconds, each.held, verdict, done, each)
        for job, plan, each, verdict in zip(jobs, plans, left, verdicts, strict=True)
    ]


def _copy(jobs: Sequence[Job], advance: Advance) -> list[_Copies]:
    made = [_Copies([], [], [], [], []) for _ in jobs]
    undo = _undo_of(jobs)
    try:
        with undo, undo:
            undo.append(partial(_drop, jobs, made))
            for (plan, mover, _, _), copies in zip(jobs, made, strict=True):
                batch = batch_of(plan.moves, plan.inventory.tensors)
                copied = mover.copy(batch, advance)
                undo.append(copied.clear)
                _separate_dense(plan, batch, copied, copies)
            undo.clear()
    except BaseException as error:
        _fail(jobs, undo, error, "copying")
    return made


def _separate_dense(plan: Plan, batch: CopyBatch, copied: Sequence[Tensor], made: _Copies) -> None:
    """Separate dense tensors, which are many and simple, from those that need views of the copy."""
    shapes, strides = plan.inventory.tensors.metadata.shapes, plan.inventory.tensors.metadata.strides
    dense = list(batch.dense)
    formats = plan.moves.conversions.items()
    laid_out = {first for first, each in formats if each.memory_format is not torch.preserve_format}
    for index, (first, copy) in enumerate(zip(plan.moves.firsts, copied, strict=True)):
        # A dimension of length 1 can have any stride, and the copy may have another one.
        if 1 in shapes[first] and dense[index] and first not in laid_out:
            dense[index] = copy.stride() == strides[first]
    for indices in plan.moves.ways.values():
        one = next((index for index in indices if dense[index]), None)
        if one is not None and not can_rebind_dense(batch.sources[one], copied[one]):
            for index in indices:
                dense[index] = False
    made.places.extend(compress(plan.moves.firsts, dense))
    made.sources.extend(compress(batch.sources, dense))
    made.copies.extend(compress(copied, dense))
    others = [index for index, is_so in enumerate(dense) if not is_so]
    if others:
        _add_rebindings(plan, others, copied, made)


def _add_rebindings(plan: Plan, others: Sequence[int], copied: Sequence[Tensor], made: _Copies) -> None:
    """Make the views that all but dense tensors become. Loops, since an error would keep a comprehension's frame."""
    moving = _moving_ids(plan)
    storages = [plan.moves.storages.at(plan.moves.firsts[index]) for index in others]
    views: list[list[tuple[Tensor, Tensor]]] = []
    for index, storage in zip(others, storages, strict=True):
        views.append([])
        if storage.storage_bytes >= 0:
            made.cut.extend(_one_of_each_storage(plan, storage))
        for entry, offset in zip(storage.indices, storage.offsets or (None,), strict=True):
            tensor, copy = plan.inventory.tensors.objects[entry], copied[index]
            is_whole = storage.storage_bytes < 0  # no storage on its device: the copy is the tensor
            conversion = plan.moves.conversions.get(storage.indices[0])
            if is_whole:
                view = dressed(copy, tensor)
            elif conversion is not None and conversion.memory_format is not torch.preserve_format:
                view = view_of_all(copy)
            else:
                dtype = None if conversion is None else conversion.dtype
                view = view_on(copy, tensor, storage.spans, offset, dtype=dtype)
            views[-1].append((tensor, view))
    for pairs in views:
        several: list[Rebinding] = []
        for tensor, view in pairs:
            several.append(rebinding(tensor, view, moving=moving))
        made.rebindings.extend(with_shared_versions(several))


def _one_of_each_storage(plan: Plan, storage: StateStorage) -> Iterable[int]:
    storages = plan.inventory.tensors.metadata.storage_ids
    return {storages[entry]: entry for entry in reversed(storage.indices)}.values()


def _moving_ids(plan: Plan) -> set[int]:
    tensors = plan.inventory.tensors.objects
    return {id(tensors[index]) for index in plan.moves.indices()}


def _wait_for(jobs: Sequence[Job]) -> None:
    """Wait for unfinished copies, which must not be read yet."""
    for job in jobs:
        job.mover.finish()
    _wait_for_devices(jobs)


def _wait_for_devices(jobs: Sequence[Job]) -> None:
    for device in {device for job in jobs for way in job.plan.moves.ways for device in way}:
        synchronize_device(device)


def _commit(
    jobs: Sequence[Job],
    copies: Sequence[_Copies],
    consent: Callable[[], None],
    stages: Stages,
) -> tuple[list[Plan], list[Verdict | None], list[OldStorages]]:
    with HeldInterrupts() as interrupts, interrupts:
        # A separate function, so that its `try` begins inside the `with`.
        return _commit_held(jobs, copies, consent, stages, interrupts)


def _commit_held(
    jobs: Sequence[Job],
    copies: Sequence[_Copies],
    consent: Callable[[], None],
    stages: Stages,
    interrupts: HeldInterrupts,
) -> tuple[list[Plan], list[Verdict | None], list[OldStorages]]:
    undo, old = _undo_of(jobs), [OldStorages(job.plan) for job in jobs]
    accumulators: list[Accumulators] = []
    try:
        with undo, undo:
            stages.begin("commit")
            undo.append(partial(_drop, jobs, copies, old))
            for job, made, before in zip(jobs, copies, old, strict=True):
                accumulators.append(_rebind_all(job.plan, made, before, undo))
                repoint_all(job.plan.repoints, undo)
            # Whatever does not read the copies overlaps with them.
            if any(map(_reads_bytes, jobs)):
                _wait_for(jobs)
            done = [job.plan.with_adopted(call_overrides(job.plan, undo)) for job in jobs]
            stages.begin("verify")
            verdicts = [job.verify(plan) for job, plan in zip(jobs, done, strict=True)]
            stages.begin("finish")  # wait for the last copies and the other ranks, free the old storages
            _wait_for(jobs)
            interrupts.break_off()
            consent()
            undo.clear()
    except BaseException as error:
        _fail(jobs, undo, error, "committing")
    for each in accumulators:
        each.let_go()
    for made, before in zip(copies, old, strict=True):
        made.clear()
        before.release()
    return done, verdicts, old


def _undo_of(jobs: Sequence[Job]) -> Undo:
    def wait() -> None:
        """Unfinished copies must not write to memory that has been freed."""
        with suppress(Exception):  # a failed device raises here too; the first error is the one to report
            _wait_for_devices(jobs)

    return Undo(first=wait)


def _drop(jobs: Sequence[Job], copies: Sequence[_Copies], old: Sequence[OldStorages] = ()) -> None:
    """Drop the copies and all that was held for them; the tensors are on their old storages again."""
    for made in copies:
        made.clear()
    for before in old:
        before.keep()
    for job in jobs:
        job.mover.drop()


def _fail(jobs: Sequence[Job], undo: Undo, error: BaseException, stage: str) -> NoReturn:
    """Raise the error that stopped the move, or an error raised during the rollback, from it."""
    first = error if undo.error is None else undo.error
    for each in (first, error):
        # The error keeps its frames, and they would keep the copies alive.
        traceback.clear_frames(each.__traceback__)
    with suppress(Exception):  # as above
        for device in {target for job in jobs for _, target in job.plan.moves.ways}:
            release_cached_memory(device)
    failure = first
    if undo.failed or (isinstance(first, Exception) and not isinstance(first, TorchmoveError)):
        failure = MoveFailed(stage, f"{type(first).__name__}: {first}", not_undone=undo.failed)
        failure.__cause__ = first
    if undo.failed or error is first:
        raise failure
    raise error from failure


# ---------------------------------------------------------------- the steps of the commit


def _rebind_all(plan: Plan, made: _Copies, old: OldStorages, undo: Undo) -> Accumulators:
    composites = _moving_composites(plan)
    swapped = composites or any(each.by_swap for each in made.rebindings)
    tensors = [
        *made.sources,
        *(each.tensor for each in made.rebindings),
        *(composite.tensor for composite in composites),
    ]
    gradients = Gradients(tensors if swapped else ())
    holders = (holder for holder, _ in plan.inventory.holders.values())
    scripted = ScriptedAttributes(holders if swapped else ())
    accumulators = Accumulators(tensors)
    # Undo runs in reverse: these run last, when all tensors are on their old storages again.
    undo += [accumulators.hand_over, gradients.set, scripted.set]
    while made.copies:
        _rebind_last(plan, made, old, undo)
    old.record(made.cut, [plan.inventory.tensors.objects[first] for first in made.cut])
    for each in made.rebindings:
        rebind(each, undo)
    # The parts are rebound by now.
    for composite in composites:
        rebind(composite_rebinding(composite.tensor, composite.rebuild()), undo)
    gradients.set()
    scripted.set()
    accumulators.hand_over()
    return accumulators


def _rebind_last(plan: Plan, made: _Copies, old: OldStorages, undo: Undo) -> None:
    """Rebind the last AT_ONCE dense tensors: few enough to stay in the CPU's cache."""
    some = slice(max(0, len(made.copies) - AT_ONCE), len(made.copies))
    places, sources, copies = made.places[some], made.sources[some], made.copies[some]
    del made.copies[some]

    def views() -> Iterator[View]:
        """A dense tensor starts at offset 0 of its storage."""
        return (plan.inventory.tensors.metadata.view(place, 0) for place in places)

    rebind_dense(sources, copies, old.record(places, sources), views, undo)


def _moving_composites(plan: Plan) -> list[Composite]:
    """Composites with a part that moves, the innermost first (the survey finds it last)."""
    moving = _moving_ids(plan) if plan.inventory.composites else set()
    composites = []
    for composite in reversed(plan.inventory.composites):
        if any(id(part) in moving for part in composite.parts):
            moving.add(id(composite.tensor))
            composites.append(composite)
    return composites


def _reads_bytes(job: Job) -> bool:
    """Whether the commit reads the copies: to compare digests, or in a module's own `_apply`."""
    return job.plan.digests is not None or has_overrides(job.plan)
