"""A rehearsal, from beginning to end."""

from __future__ import annotations

import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import parameter
from torch.optim import Optimizer

from torchmove import _move, _survey
from torchmove._interrupts import HeldInterrupts
from torchmove._names import names_of
from torchmove._paths import Path
from torchmove._records import Inventory, Refusal
from torchmove._repointing import repoint_all
from torchmove._storage import is_scripted, plain_torch
from torchmove._undo import Undo
from torchmove.rehearsal import cuda
from torchmove.rehearsal.disguise import Disguise
from torchmove.rehearsal.given import is_data, trained_in
from torchmove.rehearsal.kinds import provenance_of
from torchmove.rehearsal.loaders import delivered
from torchmove.rehearsal.memento import remember, remember_globals, remember_names
from torchmove.rehearsal.provenance import Line, Provenance, users_line_of
from torchmove.rehearsal.result import Finding, Rehearsal
from torchmove.rehearsal.saving import nothing_saved
from torchmove.rehearsal.scene import dress, set_up
from torchmove.rehearsal.stage import CannotGoOn, NotFollowed, Stage, off_stage
from torchmove.rehearsal.standin import CPU, StandIn
from torchmove.rehearsal.surroundings import Surroundings
from torchmove.rehearsal.threads import Company
from torchmove.rehearsal.tracing import nothing_traced

MovedBy = Literal["torchmove", "to"]
Data = Literal["shapes", "real"]
# What keeps a step from beginning, by how it is moved: not that there are no bytes yet, nor what a move sees to itself.
_IN_THE_WAY = {
    "torchmove": ("tm.move refuses this state", {f"R02{each}" for each in (0, 1, 2, 3, 4, 5, 6, 7, 9)}),
    "to": ("a rehearsal does not see what is in this", {"R022", "R023"}),
}
_GOES_ON = "a thread of the step was still at work when it ended: what it does then is not followed; let the step wait"
_REAL = "rehearse with data='real', on the command line --data real"
_one_at_a_time = threading.Lock()
_under_way: list[Company] = []  # one, or none


def rehearse(
    step: Callable[..., Any],
    *objects: Any,
    to: str | torch.device = "cuda",
    moved_by: MovedBy = "torchmove",
    data: Data = "shapes",
) -> Rehearsal:
    """Run a training step on a simulated device, and say which of its lines would fail on the real one.

    No byte is moved, no device is touched, and afterwards everything is as it was.

    Args:
        step: your function.
        *objects: what it is called with; their tensors are stand-ins meanwhile. Modules, optimizers and what holds them
            are on the device when it begins; tensors and containers of tensors, such as a batch, are on the CPU.
        to: the device, which need not be there.
        moved_by: "torchmove" puts them where tm.move would, "to" where Module.to would.
        data: "shapes" computes with shapes alone, "real" with real values, for steps that look at them.

    Returns:
        The rehearsal: its findings, each with file, line, why and remedy, and the peak of the memory.

    Raises:
        TypeError: the step is none, or cannot be called with these objects.
        ValueError: an option is none, or the device is the CPU.

    Examples:
        >>> import torch, torchmove as tm
        >>> def step(model, batch):
        ...     return model(batch)                   # nobody has moved the batch
        >>> model, batch = torch.nn.Linear(2, 3), torch.ones(4, 2)
        >>> found = tm.rehearse(step, model, batch, to="cuda")
        >>> found.ok, found.findings[0].kind, found.findings[0].remedy
        (False, 'input', 'batch = batch.to(device), before it is used')
    """
    return rehearse_named(step, objects, names_of(objects, sys._getframe().f_back), to, moved_by, data)


def rehearse_named(
    step: Callable[..., Any],
    objects: tuple[Any, ...],
    named: dict[str, Any],
    to: str | torch.device,
    moved_by: MovedBy,
    data: Data,
) -> Rehearsal:
    if not callable(step):
        raise TypeError(f"rehearse takes a step, which is a function, and what to call it with: not {step!r}")
    check_call(step, objects)
    if moved_by not in ("torchmove", "to"):
        raise ValueError(f"moved_by is 'torchmove' or 'to', not {moved_by!r}")
    if data not in ("shapes", "real"):
        raise ValueError(f"data is 'shapes' or 'real', not {data!r}")
    home = home_of(to)
    if any(company.is_on_stage() for company in _under_way):
        raise RuntimeError("a rehearsal is under way: rehearse one step at a time")
    with _one_at_a_time:
        rehearsing = _Rehearsing(step, objects, named, home, moved_by, data)
        _under_way.append(rehearsing.company)
        try:
            return rehearsing.result()
        finally:
            _under_way.clear()


def check_call(step: Callable[..., Any], objects: tuple[Any, ...]) -> None:
    if inspect.isgeneratorfunction(step) or inspect.iscoroutinefunction(step):
        raise TypeError("this step does nothing when it is called: give a function that runs it to its end")
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # not every callable tells
        return
    try:
        signature.bind(*objects)
    except TypeError as error:
        name = getattr(step, "__name__", type(step).__name__)
        kinds = ", ".join(type(each).__name__ for each in objects)
        raise TypeError(f"the step {name}{signature} cannot be called with ({kinds}): {error}") from None


def home_of(to: str | torch.device) -> torch.device:
    """The device, with its number."""
    try:
        device = torch.device(to)
    except RuntimeError:
        raise ValueError(f"to={to!r} is no device that torch knows; name one, such as to='cuda'") from None
    if device.type in ("cpu", "meta"):
        raise ValueError(f"to={device.type!r}: nothing to rehearse there; name a device, such as to='cuda'")
    return torch.device(device.type, device.index or 0)


class _Rehearsing:
    def __init__(
        self,
        step: Callable[..., Any],
        objects: tuple[Any, ...],
        named: dict[str, Any],
        home: torch.device,
        moved_by: MovedBy,
        data: Data,
    ) -> None:
        self.step, self.objects, self.home, self.moved_by = step, objects, home, moved_by
        self.states = {name: each for name, each in named.items() if not is_data(each)}
        if not isinstance(step, types.FunctionType):
            self.states.setdefault("step", step.__self__ if isinstance(step, types.MethodType) else step)
        self.trained = list(trained_in(list(self.states.values())))
        given = {id(each) for each in (*named.values(), *self.states.values())}
        self.around = Surroundings(step, [*self.states.values(), *self.trained])
        found = self.around.held.items()
        self.outside = {name: each for name, each in found if id(each) not in given and name not in named}
        self.named = {"step": step, **self.outside, **named, **self.states}
        self.stage = Stage(home, real=data == "real", tell=self.tell, find=self.find)
        self.company = Company(self.stage, self.broke_off)
        self.findings: dict[tuple[str, int, str], Finding] = {}
        self.stopped = ""

    def result(self) -> Rehearsal:
        undo = Undo(always=True)
        try:
            with undo, undo:
                with HeldInterrupts() as interrupts, interrupts:
                    self.set_up(undo)
                if not self.stopped:
                    self.on_stage(undo)
                if not self.stopped and not self.stage.meter.saw_any:
                    self.stopped = (
                        f"nothing ever was on {self.home}: give the model to the rehearsal, and send the batch there"
                    )
        finally:
            if undo.failed:
                raise RuntimeError(f"after the rehearsal something could not be put back: {undo.failed}")
        return Rehearsal(self.home, tuple(self.findings.values()), self.stage.meter.peak(), self.stopped)

    # ------------------------------------------------------------ before

    def set_up(self, undo: Undo) -> None:
        remember_globals(undo)
        remember_names(self.around.names, self.around.classes, undo)
        self.set_up_states(undo)

    @plain_torch
    def set_up_states(self, undo: Undo) -> None:
        inventory = _survey.survey(self.named)
        remember([*self.named.values(), *(holder for holder, _ in inventory.holders.values())], undo)
        places = self.places(inventory, undo)
        data = {name for name in self.named if name not in self.states and name not in self.outside}

        def came_from(index: int) -> Provenance | None:
            at_home = places[id(inventory.slots.tensors[index])] == self.home
            return None if at_home else provenance_of(inventory, index, data, {*self.outside})

        set_up(inventory, self.stage, places, came_from, undo)

    def places(self, inventory: Inventory, undo: Undo) -> dict[int, torch.device]:
        """Where each tensor is when the step begins, by its id."""
        places = {id(tensor): _place(tensor.device) for tensor in inventory.slots.tensors}
        if not self.states:
            return places
        plan = _move.plan_for(self.states, self.home, (), lambda _: None)
        if self.moved_by == "torchmove":
            places.update(zip(map(id, plan.inventory.slots.tensors), plan.placement, strict=True))
            repoint_all(plan.repoints, undo)
        why, codes = _IN_THE_WAY[self.moved_by]
        refused = [f"\n      {each}" for each in plan.refusals if each.code in codes]
        programs = [path for holder, path in plan.inventory.holders.values() if is_scripted(holder)]
        if programs and not refused:
            why, refused = _IN_THE_WAY["to"][0], [f"\n      {_unseen(programs)}"]
        self.stopped = f"{why}:{''.join(refused)}" if refused else ""
        return places

    @contextmanager
    def lazy_parameters(self, undo: Undo) -> Iterator[None]:
        """What waits for its shape gets a stand-in when it has one."""

        def materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
            with off_stage():
                behind = torch.empty(
                    shape, dtype=dtype or tensor.data.dtype, device="cpu" if self.stage.real else "meta"
                )
            dress(tensor, self.stage.wrap(behind, self.home if device is None else device, None), undo)

        mixin: Any = parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
        with patch.object(mixin, "materialize", materialize):
            yield

    # ------------------------------------------------------------ meanwhile

    def on_stage(self, undo: Undo) -> None:
        stage, company = self.stage, self.company
        surroundings = (cuda.harmless(), delivered(stage), nothing_saved(company), nothing_traced(), company.followed())
        with self.lazy_parameters(undo), ExitStack() as stack:
            for each in surroundings:
                stack.enter_context(each)
            try:
                with Disguise(stage), stage:
                    self.perform()
            finally:
                if not company.end():
                    self.stopped = self.stopped or _GOES_ON
        self.mark_state()

    def perform(self) -> None:
        try:
            if self.moved_by == "to":
                for each in self.trained:
                    if isinstance(each, nn.Module):
                        each.to(self.home)
            self.step(*self.objects)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a step that ends the program does not run to its end
            self.broke_off(error)

    def broke_off(self, error: BaseException) -> None:
        said = str(error).strip().splitlines()
        if isinstance(error, CannotGoOn):
            remedy = "leave it out of the rehearsal" if self.stage.real else _REAL
            self.stop(error, f"{error}: what is known does not tell how it goes on", remedy)
        elif isinstance(error, NotFollowed):
            self.stop(error, str(error), "leave it out of the rehearsal")
        elif said and "data is not allocated yet" in said[0]:
            why = "torch reads values by their address here"
            self.stop(error, why, "rehearse with data='real'; if it is so already, leave it out")
        else:
            self.stop(error, ": ".join([type(error).__name__, *said[:1]]), "it is not about devices")

    def stop(self, error: BaseException, why: str, remedy: str) -> None:
        line = users_line_of(error)
        self.stopped = self.stopped or f"stopped at {line}  {line.text}\n      {why}\n      fix: {remedy}"

    def tell(self, stray: StandIn, operation: str, line: Line) -> None:
        came = stray.came_from() or Provenance("input", f"a tensor on {stray._place}", "send it to the device first")
        made = f" ({came.line})" if came.line and came.line != line else ""
        self.find(line, came.kind, f"{operation} with a tensor on {stray._place}: {came.what}{made}", came.remedy)

    def find(self, line: Line, kind: str, why: str, remedy: str) -> None:
        self.findings.setdefault(
            (line.file, line.number, kind), Finding(line.file, line.number, kind, line.text, why, remedy)
        )

    # ------------------------------------------------------------ afterwards

    def mark_state(self) -> None:
        """What an optimizer holds now it will hold in the next step too."""
        for optimizer in (each for each in self.trained if isinstance(each, Optimizer)):
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, StandIn):
                        self.stage.meter.mark(value._behind, "optimizer")


def _place(device: torch.device) -> torch.device:
    return CPU if device.type in ("cpu", "meta") else torch.device(device.type, device.index or 0)


def _unseen(programs: list[Path]) -> Refusal:
    more = f" and {len(programs) - 1} more" if len(programs) > 1 else ""
    remedy = "rehearse with the module it was made from"
    return Refusal("R022", f"{programs[0]}{more}", "TorchScript runs it, not Python", remedy)
