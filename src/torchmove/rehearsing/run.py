"""Run a step on a simulated device: set up, perform, restore and report."""

from __future__ import annotations

import ast
import contextvars
import functools
import inspect
import linecache
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove.chain import plan_for
from torchmove.devices import free_memory
from torchmove.errors import lines_by_reason
from torchmove.formatting import bytes_of, listed, readable_bytes
from torchmove.internals.frames import frame
from torchmove.internals.guards import HeldInterrupts, Undo, plain_torch
from torchmove.internals.scripted import is_scripted
from torchmove.internals.stored import APPLY, apply_of
from torchmove.moving.apply import repoint_all
from torchmove.planning.plan import Refusal, Repoint
from torchmove.rehearsing import decisions, runtime
from torchmove.rehearsing.captured import Captured, Given, trained_in
from torchmove.rehearsing.concurrency import ThreadTracking, delivered, dismiss
from torchmove.rehearsing.decisions import SwitchedOff, switched_off_by
from torchmove.rehearsing.device import CannotGoOn, Ended, NotFollowed, NotOnDevice, SimulatedDevice, Unfinished
from torchmove.rehearsing.evidence import Recorder
from torchmove.rehearsing.files import files
from torchmove.rehearsing.function_overrides import Call, FunctionOverrides, hooks_overridden
from torchmove.rehearsing.origins import Belongings, computed_from, name_of, thrown_away
from torchmove.rehearsing.precision import mixed_precision
from torchmove.rehearsing.provenance import (
    Line,
    Origin,
    Provenance,
    frames_of,
    is_installed,
    is_ours,
    is_users,
    own_line,
    users_line_of,
)
from torchmove.rehearsing.replacement import lazy_tensors, plainly, set_up
from torchmove.rehearsing.restore import (
    MOST_ARRAY_BYTES,
    Iterators,
    keepers_of,
    remember,
    remember_generators,
    remember_globals,
    remember_names,
)
from torchmove.rehearsing.result import Finding, Rehearsal
from torchmove.rehearsing.runtime import forget_answers, nothing_traced, remember_shared, take_accelerators, take_chosen
from torchmove.rehearsing.tensors import CPU, StandIn, generators, leaves, place_of
from torchmove.results import Result
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.paths import Path, names_of
from torchmove.surveying.survey import survey_objects
from torchmove.wrong_calls import no_step

MovedBy = Literal["torchmove", "to"]
Data = Literal["auto", "shapes", "real"]
Ending = Literal["finished", "error", "device", "limit", "refused"]

# Refusals of a plan that do not stop a rehearsal: temporary ones, such as gathered shards and live graphs; missing
# bytes; and too little memory.
_NO_OBSTACLE = {"R028", "R030", "R032", "R033", "R042"}
_OF_MODULE_TO = {"R022", "R023", "R040"}  # what Module.to cannot move, or a rehearsal cannot inspect
_GOES_ON = "a thread of the step was still running when the step ended. Fix: join it in the step"
_MOVE_IN_STEP = "pass the model to tm.rehearse, and move the batch in the step: batch = batch.to(device)"
_MOVE_IN_SCRIPT = 'move the model and each batch in the script: model.to("cuda")'
_LEAVE_OUT = "rehearse the step without it"
_SMALL = 64 << 20  # up to this many bytes, data="auto" starts with real values
# Errors of a torch that was built without the device, or whose device is not in this machine.
_OF_THE_BUILD = re.compile(
    r"'torch\._C' has no attribute '_|requires CUDA support|accelerator device when none is available|dummy base class"
    r"|not (been )?compiled with|without ATen_cuda"
    r"|Found no NVIDIA driver|driver version is insufficient|no CUDA-capable device|No CUDA GPUs are available"
    r"|invalid argument to exchangeDevice|plan_cache: expected 0 <= device_index"
)
# Errors of torch's C++ about what a stand-in lacks.
_OF_THE_SIMULATION = re.compile(
    r"data pointer|data_ptr|(have|has no|without) storage|not allocated yet|StandIn|torch_dispatch|meta tensor"
    r"|[Ii]nference tensor|version_counter|Python key|functorch|swap_tensor|_make_wrapper"
    r"|already associated to a python object"
)
# Errors of Python and torch about argument types; not the simulation's: a stand-in has all attributes of a tensor.
_OF_ARGUMENTS = re.compile(
    r"unsupported operand|invalid combination of arguments|argument '?\w+'? .*must be|'StandIn' object has no attribute"
)
_ASKS_FOR_DEVICE = re.compile(r"\.(is_cuda|is_cpu|is_mps|is_xpu|get_device|device)\b")
_OF_MODULES = {"parameter", "buffer", "gradient", "state"}
_ENDS = (SystemExit, KeyboardInterrupt)
_TORCHS_ERRORS = (RuntimeError, NotImplementedError, TypeError, AttributeError)
_CALLS = {FunctionOverrides.__torch_function__.__code__, Call.done.__code__}
_one_at_a_time = threading.Lock()
_under_way: list[ThreadTracking] = []  # at most one


class Options(NamedTuple):
    """The options of `rehearse`, which documents them."""

    to: Any = "cuda"
    moved_by: MovedBy = "torchmove"
    data: Data = "auto"
    state: tuple[Any, ...] = ()
    strict_devices: bool = False
    confirm_errors: bool = False
    max_memory: str | int | None = None
    subject: str = "the step"  # a script by its name
    evidence: bool = False  # record what `--fix` needs; see evidence.py

    @property
    def is_script(self) -> bool:
        return self.subject != "the step"

    def check(self) -> None:
        if self.moved_by not in ("torchmove", "to"):
            raise ValueError(f"moved_by must be 'torchmove' or 'to', not {self.moved_by!r}")
        if self.data not in ("auto", "shapes", "real"):
            raise ValueError(f"data must be 'auto', 'shapes' or 'real', not {self.data!r}")
        self.max_bytes()

    def max_bytes(self) -> int | None:
        return None if self.max_memory is None else bytes_of(self.max_memory, "max_memory=")


def rehearse(
    step: Callable[..., Any],
    *objects: Any,
    to: str | torch.device = "cuda",
    moved_by: MovedBy = "torchmove",
    data: Data = "auto",
    state: tuple[Any, ...] | list[Any] = (),
    strict_devices: bool = False,
    confirm_errors: bool = False,
    max_memory: str | int | None = None,
) -> Rehearsal:
    """Run a training step on a simulated device and report the lines that would fail on the real one.

    Moves no byte, uses no device, and restores everything afterwards.

    Args:
        step: your function.
        *objects: its arguments; stand-ins replace their tensors during the rehearsal. Modules, optimizers and objects
            that hold them start on the device; tensors, containers of tensors and objects without parameters, such as
            a batch, start on the CPU.
        to: the device; this machine need not have it. "auto": the machine's accelerator, else "cuda".
        moved_by: "torchmove" places the state as tm.move does, "to" as Module.to does.
        data: "real" computes with real values, "shapes" with shapes only; "auto" uses real values for a small state,
            and for a large one if the step branches on a value and memory suffices.
        state: objects without parameters that are moved with the model too.
        strict_devices: report a device that was chosen because this machine has no GPU, instead of replacing it by the
            simulated one.
        confirm_errors: if the step ends in an error, run it again without the simulation, on copies on the CPU, to
            distinguish an error of the step from a limit of the rehearsal.
        max_memory: the rehearsal is false if the peak memory is above this: "80GB", "80GiB" or a number of bytes.

    Returns:
        The rehearsal: its findings, each with file, line, why and remedy, and the peak memory. It is true if the step
        finished, nothing would fail and the peak memory is not above `max_memory`.

    Raises:
        TypeError: the step is not callable, or cannot be called with these objects.
        ValueError: an option is unknown, the device is the CPU, or `max_memory` is not a size.

    Examples:
        >>> import torch, torchmove as tm
        >>> def step(model, batch):
        ...     return model(batch)                   # the batch was not moved
        >>> model, batch = torch.nn.Linear(2, 3), torch.ones(4, 2)
        >>> found = tm.rehearse(step, model, batch, to="cuda")
        >>> found.ok, found.findings[0].kind, found.findings[0].remedy
        (False, 'input', 'batch = batch.to("cuda")')
    """
    if not callable(step) or isinstance(step, Result) or (isinstance(step, nn.Module) and not objects):
        raise no_step(step)
    options = Options(to, moved_by, data, tuple(state), strict_devices, confirm_errors, max_memory)
    return rehearse_for(step, objects, options, frame(0).f_back)


def rehearse_for(
    step: Callable[..., Any], objects: tuple[Any, ...], options: Options, caller: types.FrameType | None
) -> Rehearsal:
    """Rehearse a step, naming the objects as the caller's frame does."""
    named = names_of(objects, caller, parameters_of(step, objects))
    return rehearse_named(step, objects, named, options, "" if caller is None else caller.f_code.co_filename)


def rehearse_named(
    step: Callable[..., Any], objects: tuple[Any, ...], named: dict[str, Any], options: Options, caller: str = ""
) -> Rehearsal:
    """Rehearse a step with named objects. `caller`: the calling file, which may have created the arguments."""
    if not callable(step):
        raise TypeError(
            f"the step must be a function, not {type(step).__name__}. "
            "Fix: tm.rehearse(train_step, model, optimizer, batch)"
        )
    check_call(step, objects)
    options.check()
    home_of(options.to)
    if any(company.is_on_stage() for company in _under_way):
        raise RuntimeError("another rehearsal is running. Fix: rehearse one step at a time")
    with _one_at_a_time:
        first = _Rehearsing(step, objects, named, options, caller)
        found = _performed(first)
        is_over = isinstance(first.raised, Unfinished)
        by_values = found.ending in ("limit", "error") and first.may_be_by_values()
        if options.data == "auto" and not first.stage.real and by_values and not is_over:
            why_not = first.why_not_real()
            if why_not:
                return found.because(why_not)
            second = _Rehearsing(step, objects, named, options._replace(data="real"), caller)
            second.values = f"real: with shapes only it {first.how_it_ended()}"
            return _performed(second)
        return found


def _performed(rehearsing: _Rehearsing) -> Rehearsal:
    _under_way.append(rehearsing.company)
    try:
        return rehearsing.result()
    finally:
        _under_way.clear()


def check_call(step: Callable[..., Any], objects: tuple[Any, ...]) -> None:
    if inspect.isgeneratorfunction(step) or inspect.iscoroutinefunction(step):
        raise TypeError(
            "the step is a generator or async function, so calling it runs nothing. Fix: pass an ordinary function"
        )
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # not every callable has a signature
        return
    try:
        signature.bind(*objects)
    except TypeError as error:
        name = getattr(step, "__name__", type(step).__name__)
        kinds = ", ".join(type(each).__name__ for each in objects)
        raise TypeError(f"the step {name}{signature} cannot be called with ({kinds}): {error}") from None


def home_of(to: str | torch.device) -> torch.device:
    """The device, with its index. "auto": the machine's accelerator, where there is none a GPU."""
    if to == "auto":
        to = torch.accelerator.current_accelerator(check_available=True) or "cuda"
    try:
        device = torch.device(to)
    except RuntimeError:
        raise ValueError(f"to={to!r} is not a device that torch knows. Fix: to='cuda'") from None
    if device.type in ("cpu", "meta"):
        raise ValueError(f"to={device.type!r}: a rehearsal simulates an accelerator. Fix: to='cuda'")
    return place_of(device)


def parameters_of(step: Any, objects: tuple[Any, ...]) -> dict[str, Any]:
    """The objects by the names of the step's positional parameters; without those that `*args` takes."""
    try:
        parameters = [*inspect.signature(step).parameters.values()]
    except (TypeError, ValueError):
        return {}
    places = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return dict(zip(places, objects, strict=False))


def _bound_in(step: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments bound by a step that is a `functools.partial`, by the names of the function's parameters."""
    if not isinstance(step, functools.partial):
        return {}
    try:
        bound = inspect.signature(step.func).bind_partial(*step.args, **step.keywords).arguments
    except (TypeError, ValueError):
        bound = {str(index): each for index, each in enumerate((*step.args, *step.keywords.values()))}
    known = {id(each) for each in named.values()}
    return {name: each for name, each in bound.items() if id(each) not in known and name not in named}


class _Rehearsing:
    def __init__(
        self,
        step: Callable[..., Any],
        objects: tuple[Any, ...],
        named: dict[str, Any],
        options: Options,
        caller: str,
    ) -> None:
        self.step, self.objects, self.options, self.caller = step, objects, options, caller
        self.arguments = objects  # replaced where they hold a device
        self.home = home_of(options.to)
        bound = _bound_in(step, named)
        named = {**named, **bound}
        given = Given(named, options.state)
        self.states, self.assumed = given.states, given.assumed
        self.parameters = parameters_of(step, objects)
        named = self.as_the_step_names_them(named)
        self.bound = bound.keys() - self.states.keys()  # data bound by a partial
        if not isinstance(step, types.FunctionType):
            self.states.setdefault("step", step.__self__ if isinstance(step, types.MethodType) else step)
        self.trained = list(trained_in(list(self.states.values())))
        known = {id(each) for each in (*named.values(), *self.states.values())}
        self.around = Captured(step, [*self.states.values(), *self.trained, *objects])
        found = self.around.held.items()
        self.outside = {name: each for name, each in found if id(each) not in known and name not in named}
        self.named = {**bound, "step": step, **self.outside, **named, **self.states}
        name = getattr(step, "__qualname__", type(step).__name__)
        real = options.data == "real"
        self.stage = SimulatedDevice(self.home, real=real, tell=self.tell, find=self.find, step=name)
        self.company = ThreadTracking(self.stage, self.broke_off)
        self.findings: dict[tuple[str, int, str, str], Finding] = {}
        self.values = "real" if options.data == "real" else "shapes"
        self.stopped, self.ending = "", "finished"
        self.stopped_at: Line | None = None
        self.raised: BaseException | None = None
        self.state_bytes, self.has_values = 0, True
        self.own: dict[str, str] = {}  # objects whose own code moves their tensors, and their classes
        self.sent: set[str] = set()  # names of captured objects that were moved to the device
        self.replaced: set[int] = set()  # tensors assigned to a module after it was moved
        self.with_attributes: set[str] = set()  # objects with tensors that Module.to does not move
        self.sent_modules: dict[int, nn.Module] = {}
        self.generators: list[torch.Generator] = []
        self.made: list[Any] = []  # autocast regions and scalers that the code would enable on the device
        self.is_off: SwitchedOff = lambda _: False
        self.iterators: Iterators | None = None
        self.repoints: Sequence[Repoint] = ()  # stored devices in the given objects
        self.recorder = Recorder(self.stage) if options.evidence else None

    def as_the_step_names_them(self, named: dict[str, Any]) -> dict[str, Any]:
        """Rename data to the step's parameters: remedies move it inside the step."""
        parameters = {id(each): name for name, each in self.parameters.items()}
        renamed: dict[str, Any] = {}
        for name, each in named.items():
            mine = name if name in self.states else parameters.get(id(each), name)
            renamed[mine if mine not in renamed else name] = each
        return renamed if len(renamed) == len(named) else named

    def result(self) -> Rehearsal:
        undo = Undo(always=True)
        try:
            with undo, undo:
                with HeldInterrupts() as interrupts, interrupts:
                    self.set_up(undo)
                if not self.stopped:
                    self.on_stage(undo)
                if not self.stopped and self.stage.left is not None:
                    self.check_left(self.stage.left)
                if not self.stopped and not self.stage.meter.saw_any:
                    self.ending = "limit"
                    remedy = _MOVE_IN_SCRIPT if self.options.is_script else _MOVE_IN_STEP
                    self.stopped = f"no tensor was on {self.home}\n      Fix: {remedy}"
        finally:
            self.stage.close()
            if undo.failed:
                raise RuntimeError(f"the rehearsal could not restore everything: {undo.failed}")
        if (
            self.options.confirm_errors
            and not self.options.is_script
            and self.ending in ("error", "limit")
            and self.raised is not None
        ):
            self.confirm(self.raised)
        guessed = [
            f"{line}  {text}: 1.0 was used for a value that shape-only mode does not compute"
            for line, text in self.stage.guessed.items()
        ]
        return Rehearsal(
            device=self.home,
            findings=tuple(self.findings.values()),
            peak=self.stage.meter.peak(),
            stopped=self.stopped,
            ending=self.ending,
            stopped_at="" if self.stopped_at is None else str(self.stopped_at),
            stopped_in=None if self.stopped_at is None else (self.stopped_at.file, self.stopped_at.number),
            values=self.values,
            assumed=(*self.assumed, *guessed),
            evidence=() if self.recorder is None else tuple(tuple(self.recorder.found[key]) for key in self.findings),
            max_bytes=self.options.max_bytes(),
        )

    # ------------------------------------------------------------ before the step

    def set_up(self, undo: Undo) -> None:
        remember_globals(undo)
        remember_generators([*self.named.values(), *self.around.sources], undo)
        forget_answers(undo)
        remember_shared(undo)
        if not self.options.strict_devices:
            self.assumed += take_chosen([*self.objects, *self.around.sources], self.home, undo)
        remember_names(self.around.names, self.around.classes, undo)
        self.set_up_states(undo)

    @plain_torch
    def set_up_states(self, undo: Undo) -> None:
        torch.clear_autocast_cache()  # it refers to tensors that stand-ins will replace
        inventory = survey_objects(self.named)
        self.choose_values(inventory)
        self.with_attributes = {
            next(inventory.tensors[index].path.steps()).what
            for index, role in enumerate(inventory.tensors.roles())
            if role not in _OF_MODULES
        }
        self.is_off = switched_off_by(self.around, inventory, self.caller, self.home)
        holders = [holder for holder, _ in inventory.holders.values()]
        if remember([*self.named.values(), *holders, *self.around.functions, *keepers_of(self.around)], undo):
            most = readable_bytes(MOST_ARRAY_BYTES)
            self.assumed.append(
                f"the numpy arrays have more than {most}: writes of the step to some of them are not undone"
            )
        places = self.places(inventory, undo)
        if not self.options.strict_devices:
            self.decide_devices(inventory, places, undo)
        data = {name for name in self.named if name not in self.states and name not in self.outside and name != "step"}
        outside = {*self.outside} - self.sent
        belongings = Belongings(
            inventory, self.named, data, outside, self.own, self.replaced, self.sent_modules, self.home
        )

        def origin_of(path: Path, role: str, tensor: Tensor) -> Origin | None:
            at_home = places.get(id(tensor)) is self.home
            return None if at_home else belongings.origin_of(path, role, tensor)

        self.iterators = Iterators(self.around, self.named, inventory)
        self.arguments = self.iterators.spare(self.arguments)
        if not self.stopped:
            set_up(inventory, self.stage, places, origin_of, undo)

    def choose_values(self, inventory: Inventory) -> None:
        metadata = inventory.tensors.metadata
        self.has_values = all(device.type != "meta" for device in metadata.devices)
        self.state_bytes = sum(dict(zip(metadata.storage_ids, metadata.storage_bytes, strict=True)).values())
        if (
            self.options.data == "auto"
            and not self.options.is_script
            and self.has_values
            and self.state_bytes <= _SMALL
        ):
            self.stage.real = True
            self.values = "real"

    def why_not_real(self) -> str:
        """Why the step cannot be rehearsed with real values; "" if it can."""
        if not self.has_values:
            return "the state has meta tensors, which have no values. Fix: rehearse a state with values"
        needed = 3 * max(self.state_bytes, sum(self.stage.meter.peak().values()))
        free = free_memory(CPU)
        if free is not None and needed > free:
            room = f"{readable_bytes(needed)} of host memory, but only {readable_bytes(free)} are free"
            return f"real values would take about {room}"
        return ""

    def may_be_by_values(self) -> bool:
        """Whether missing values may have stopped it; a script has values, unless it has large tensors."""
        stopped_by_limit = self.ending == "limit" and self.raised is not None
        return not self.options.is_script or stopped_by_limit or bool(self.stage.guessed)

    def how_it_ended(self) -> str:
        return f"stopped at {self.stopped_at}" if self.stopped_at is not None else "stopped"

    def decide_devices(self, inventory: Inventory, places: dict[int, torch.device], undo: Undo) -> None:
        decided = decisions.Decided(self.around, self.home, self.caller)
        decided.values_in(inventory, self.named)
        named = [*self.parameters.items()]
        self.arguments = (
            *(
                decided.argument(self.step, name, value, (index, len(self.objects)))
                for index, (name, value) in enumerate(named)
            ),
            *self.objects[len(named) :],
        )
        decided.apply(undo)
        sent = {
            id(inventory.tensors.objects[index]) for index in decided.sent(inventory, {*self.outside}, self.parameters)
        }
        places.update(dict.fromkeys(sent, self.home))
        self.stage.sent = decided.there - {*map(id, inventory.tensors.objects)}
        repoint_all(decided.remembered(inventory), undo)
        take_accelerators(decided.of_libraries.values(), self.home, undo)
        for name, copy in decided.part(inventory, undo):
            self.stage.parted |= {id(each): (each, name) for each in leaves(copy)}
        self.place_own(decided, inventory, sent, places, undo)
        self.generators, self.sent, self.made = decided.generators, decided.sent_names, decided.made
        is_off, off = self.is_off, decided.again.off
        self.is_off = lambda made: any(made is each for each in off) or is_off(made)
        self.assumed += decided.assumed
        self.replaced, self.sent_modules = decided.replaced, decided.sent_modules
        line_of_default = decided.default_device()
        if line_of_default is not None:
            self.stage.default_device = self.home
        for line, names in decided.lines():
            why = f"{names}: chosen on a machine without {self.home.type}; the rehearsal uses {name_of(self.home)}"
            self.find(line, "decided", why, "none needed; strict_devices=True reports such devices as findings")

    def place_own(
        self,
        decided: decisions.Decided,
        inventory: Inventory,
        sent: set[int],
        places: dict[int, torch.device],
        undo: Undo,
    ) -> None:
        """For objects whose own code moves their tensors: put the tensors that it does not move on the CPU."""
        for name, own in self.states.items():
            kind = type(own).__name__
            is_given = any(own is each for each in (*self.objects, *self.options.state))
            if isinstance(own, (nn.Module, Optimizer)) or any(own is each for each in self.options.state):
                continue
            if name == "step" and is_given:
                continue
            of_whom = f"the step's own object (class {kind})" if name == "step" else f"{name} (class {kind})"
            if decided.sends_its_own(own):
                self.own[name] = kind
                self.assumed.append(f"of {of_whom}, the tensors that its code moves are on {self.home}")
            elif name == "step" and not isinstance(own, functools.partial):
                self.assumed.append(f"{of_whom} is treated as state")
        places_by_code = {*self.own}
        own = [each.value for each in self.repoints if next(each.value.path.steps()).what in places_by_code]
        repoint_all([Repoint(each, each.value) for each in own if not decided.decides(each)], undo)
        for name, own in self.outside.items():
            if not isinstance(own, (nn.Module, Optimizer)) and name.isidentifier() and decided.sends_its_own(own):
                self.own[name] = type(own).__name__
        for entry in inventory.tensors if places_by_code else ():
            of = entry.owner.parameter if entry.owner is not None else None
            if next(entry.path.steps()).what in places_by_code and not {id(entry.tensor), of} & sent:
                places[id(entry.tensor)] = CPU

    def places(self, inventory: Inventory, undo: Undo) -> dict[int, torch.device]:
        """The device of each tensor when the step begins, by its id."""
        places = {id(tensor): _place(tensor.device) for tensor in inventory.tensors.objects}
        if not self.states:
            return places
        plan = plan_for(self.states, self.home, (), lambda _: None)
        if self.options.moved_by == "torchmove":
            placed = map(place_of, plan.placement)
            places.update(zip(map(id, plan.inventory.tensors.objects), placed, strict=True))
            repoint_all(plan.repoints, undo)
            self.repoints = plan.repoints
        for entry in inventory.tensors if self.bound else ():
            if next(entry.path.steps()).what in self.bound:
                places[id(entry.tensor)] = _place(entry.tensor.device)
        why, refused = "tm.move refuses this state", [each for each in plan.refusals if each.code not in _NO_OBSTACLE]
        if self.options.moved_by == "to":
            why = "a rehearsal cannot run this state, or Module.to cannot move it"
            registered = {str(entry.path) for entry in plan.inventory.tensors if entry.role in ("parameter", "buffer")}
            refused = [
                each
                for each in refused
                if each.code in _OF_MODULE_TO and (each.code != "R040" or each.path in registered)
            ]
        programs = [path for holder, path in plan.inventory.holders.values() if is_scripted(holder)]
        if programs and not refused:
            why, refused = "a rehearsal cannot run this state", [_unseen(programs)]
        if refused:
            self.ending = "refused"
            self.stopped = "\n      ".join([f"{why}:", *lines_by_reason([_rehearsable(each) for each in refused])])
        return places

    # ------------------------------------------------------------ during the step

    def on_stage(self, undo: Undo) -> None:
        stage, company = self.stage, self.company
        with lazy_tensors(stage, undo), ExitStack() as stack:
            stack.enter_context(runtime.simulated(stage))
            stack.enter_context(mixed_precision(stage, [*self.named.values(), *self.made], self.is_off, self.assumed))
            stack.enter_context(generators(self.generators, self.home))
            stack.enter_context(self.watched_for_moves())
            loaders = stack.enter_context(delivered(stage))
            stack.enter_context(files(company, undo))
            stack.enter_context(nothing_traced())
            stack.enter_context(hooks_overridden(stage))
            stack.enter_context(company.followed())
            if self.recorder is not None:
                stack.enter_context(patch.object(Origin, "site_now", staticmethod(self.recorder.site_here)))
            try:
                with FunctionOverrides(stage), stage:
                    self.perform()
            finally:
                dismiss(loaders)  # their threads still wait for the next batch
                if not company.end() and not self.stopped:
                    self.stopped, self.ending = _GOES_ON, "limit"
        self.mark_state()
        self.assumed += self.iterators.advanced() if self.iterators is not None else []

    @contextmanager
    def watched_for_moves(self) -> Iterator[None]:
        """Note in `assumed` if the step calls Module.to on a module whose plain attributes tm.move has moved before."""
        apply: Any = apply_of(nn.Module)
        modules = {id(each): name for name, each in self.states.items() if isinstance(each, nn.Module)}

        def applied(module: nn.Module, function: Any, *args: Any, **kwargs: Any) -> Any:
            name = modules.pop(id(module), None)
            if name in self.with_attributes and getattr(function, "__qualname__", "").startswith("Module."):
                self.assumed.append(
                    f"{name} starts on the device with its plain attributes, as after tm.move, and the step moves it "
                    "again; moved_by='to' places it as Module.to does"
                )
            return apply(module, function, *args, **kwargs)

        moved_by_us = self.options.moved_by == "torchmove"
        with patch.object(nn.Module, APPLY, applied) if moved_by_us else nullcontext():
            yield

    def perform(self) -> None:
        try:
            if self.options.moved_by == "to":
                for each in trained_in([value for name, value in self.states.items() if name not in self.own]):
                    if isinstance(each, nn.Module):
                        each.to(self.home)
            contextvars.copy_context().run(self.step, *self.arguments)  # discards changes to context variables
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a step that exits has not finished
            self.broke_off(error)

    def broke_off(self, error: BaseException) -> None:
        if isinstance(error, TypeError) and "unsupported operand" in str(error):
            # torch's operators turn a TypeError into NotImplemented, and Python turns that into this error.
            error = self.stage.lacking.get(users_line_of(error), error).with_traceback(error.__traceback__)
        said = str(error).strip().splitlines()[:1]
        words = ": ".join([type(error).__name__, *said]).replace("StandIn", "Tensor")
        if isinstance(error, CannotGoOn):
            self.stop(error, "limit", str(error), self.with_values())
        elif isinstance(error, Ended):
            self.stop(error, "limit", error.why, error.remedy)
        elif isinstance(error, NotFollowed):
            self.stop(error, "limit", str(error), _LEAVE_OUT)
        elif isinstance(error, Unfinished):
            self.stop(error, "limit", str(error), error.remedy)
        elif isinstance(error, NotOnDevice):
            self.stop(error, "device", str(error), error.remedy)
            self.find(users_line_of(error), "dtype", str(error), error.remedy)
        elif self.is_the_simulations(error):
            remedy = self.with_values()
            cause = next((each for each in _chain(error) if _OF_THE_SIMULATION.search(str(each))), error)
            if cause is not error:
                words = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}".replace(
                    "StandIn", "Tensor"
                )
            self.stop(error, "limit", f"the rehearsal does not support this: {words}", remedy)
        elif self.is_about_devices(error):
            remedy = "correct the finding above; the step cannot continue after it"
            self.stop(error, "device", words, remedy)
        else:
            if self.stage.not_written:
                files = listed(sorted(self.stage.not_written))
                words += f" (a rehearsal does not write what the step saves, here {files})"
            remedy = "correct this exception first; it is not a device error" + (
                ""
                if self.options.confirm_errors or self.options.is_script
                else " (confirm_errors=True runs the step without the simulation)"
            )
            if _asks_for_device(_innermost(error)):
                remedy = f"correct this check of a device for {self.home}"
            self.stop(error, "error", words, remedy)
            line = users_line_of(error)
            self.find(line, "error", words, remedy)

    def with_values(self) -> str:
        """The remedy for a step that shape-only mode cannot follow."""
        return _LEAVE_OUT if self.stage.real else "rehearse with data='real'; on the command line, --data real"

    def is_about_devices(self, error: BaseException) -> bool:
        """Whether a device check in Python raised the error. Reports the tensors on the CPU there."""
        said, last = str(error), _innermost(error)
        names_both = self.home.type in said and ("device" in said or "cpu" in said)
        asks = last is not None and _asks_for_device(last)
        if isinstance(error, _ENDS) or not (names_both or asks or "different devices" in said):
            return False
        given = {} if last is None else _compared(last)
        strays = [each for each in given.values() if each._place is CPU and each._origin is not None]
        before = len(self.findings)
        is_one = asks or len(given) == 1 or len({each._place for each in given.values()}) > 1
        with frames_of(error.__traceback__):
            for stray in strays if is_one else ():
                self.tell(stray, last.tb_frame.f_code.co_name, users_line_of(error))  # type: ignore[union-attr]
        known = [each for each in strays if each._origin.reported or each._origin.root.reported]  # type: ignore[union-attr]
        return len(self.findings) > before or bool(known)

    def is_the_simulations(self, error: BaseException) -> bool:
        """Whether a limit of the simulation caused the error, not the step."""
        if any(_OF_THE_BUILD.search(str(each)) for each in _chain(error)):
            return True
        refused = self.stage.refused
        if refused is not None and any(each is refused.error for each in _chain(error)):
            return False  # torch's own kernels or shape functions raised it
        if isinstance(error, OSError) and any(name in str(error) for name in self.stage.not_written):
            return True  # reads a file that the rehearsal did not write
        if isinstance(error, (TypeError, AttributeError)) and _OF_ARGUMENTS.search(str(error)):
            return False
        if any(isinstance(each, _TORCHS_ERRORS) and _OF_THE_SIMULATION.search(str(each)) for each in _chain(error)):
            return True  # a library may raise its own error from it
        last = _innermost(error)
        # torch's C functions have no frame: a frame of ours that only calls them for the step is not the cause.
        code = None if last is None else last.tb_frame.f_code
        return code is not None and is_ours(code.co_filename) and code not in _CALLS

    def stop(self, error: BaseException, ending: Ending, why: str, remedy: str) -> None:
        if self.stopped:
            return
        line = users_line_of(error)
        self.stopped = f"stopped at {line}  {line.text}\n      {why}\n      Fix: {remedy}"
        self.ending, self.stopped_at, self.raised = ending, line, error

    def check_left(self, line: Line) -> None:
        """Report weights that this line moved to the CPU, and that were used there: perhaps by a stored device."""
        if is_installed(line.file):
            self.ending, self.stopped_at = "limit", line
            why = "this line moved the model to cpu, where it computes: its device was chosen before the rehearsal"
            remedy = "create the trainer, or the object that chooses the device, inside the step"
            self.stopped = f"stopped at {line}  {line.text}\n      {why}\n      Fix: {remedy}"
        elif self.options.strict_devices and "cpu" not in line.text:
            why = "this line moved the model to cpu, the value of a device variable, and it computes there"
            self.find(line, "stale-device", why, "use the device of a parameter: next(model.parameters()).device")

    def confirm(self, raised: BaseException) -> None:
        """Run the step without the simulation, on copies, and report whether it fails there too."""
        error = plainly(self.step, self.objects, self.named, self.around, self.home)
        if error is not None and type(error) is not type(raised):
            said = str(error).strip().partition("\n")[0]
            self.stopped += (
                f"\n      not confirmed: without the simulation, on the CPU, the step raises {_kind(error)}: {said}"
            )
        elif error is not None:
            self.ending = "error"
            self.stopped += (
                f"\n      confirmed: without the simulation, on the CPU, the step also raises {_kind(error)}"
            )
        else:
            self.ending = "limit"
            words = self.stopped.partition("\n      Fix: ")[0]
            why = (
                "without the simulation, on the CPU, the step runs to its end: the rehearsal is the cause, not the step"
            )
            self.stopped = f"{words}\n      {why}\n      Fix: {_LEAVE_OUT}"
            self.findings = {key: each for key, each in self.findings.items() if each.kind != "error"}

    def tell(self, stray: Any, operation: str, line: Line) -> None:
        origin = stray._origin
        if origin is not None and (origin.reported or origin.root.reported):
            return  # a consequence of a reported cause
        computed = computed_from(origin) if isinstance(stray, StandIn) and origin is not None else None
        if isinstance(stray, StandIn) and origin is not None and (origin.tensor is None or origin.tensor() is None):
            origin.tensor = weakref.ref(stray if computed is None else computed)
        source = origin.tensor() if origin is not None and origin.tensor is not None else None
        sendings = (each.thrown_away() for each in (stray, source, computed) if isinstance(each, StandIn))
        sent = next(filter(None, sendings), None)
        if sent is not None:
            cause = self.stage.root("thrown away", *sent)
            if cause.reported:
                return
            cause.reported = True
            came = thrown_away(origin, sent, self.home)
        elif origin is not None:
            came = origin.described()
        else:
            came = Provenance(
                "input", f"a tensor on {stray._place}", f"move it to the device first: .to({name_of(self.home)})"
            )
        made = f" ({came.line})" if came.line and came.line != line else ""
        why = f"{operation} with a tensor on {stray._place}: {came.what}{made}"
        if self.recorder is not None:
            self.recorder.about(stray, origin, came)
        found = self.find(line, came.kind, why, came.remedy)
        if origin is not None:
            origin.reported = found
            if came.kind not in ("attribute", "container"):  # each of these needs its own fix
                origin.root.reported = found

    def find(self, line: Line, kind: str, why: str, remedy: str) -> Finding:
        own = own_line() if is_installed(line.file) else None
        if own is not None:  # report the user's line that calls the library
            line, why = own, f"{why}, in {line}"
        found = Finding(line.file, line.number, kind, line.text, why, remedy)
        cause = "" if kind == "numpy" else remedy  # of a list of tensors, report only the first
        key = (line.file, line.number, kind, cause)
        if self.recorder is not None:
            self.recorder.add(key, kind)
        return self.findings.setdefault(key, found)

    # ------------------------------------------------------------ after the step

    def mark_state(self) -> None:
        """Count the optimizer state after the step as optimizer memory: later steps hold it from their start."""
        for optimizer in (each for each in self.trained if isinstance(each, Optimizer)):
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, StandIn):
                        self.stage.meter.mark(value._behind, "optimizer")


def _kind(error: BaseException) -> str:
    return type(error).__name__


def _compared(raised: types.TracebackType) -> dict[str, StandIn]:
    """The tensors of the frame that raised an error; only those that its condition names, if it names any."""
    variables = {**raised.tb_frame.f_locals}
    words = {*re.findall(r"\w+", _check_of(raised) or _test_of(raised))}
    named = {name: [each for each in leaves(variables[name]) if type(each) is StandIn] for name in words & {*variables}}
    found = {f"{name}{index}": each for name, inside in named.items() for index, each in enumerate(inside)}
    return found or {name: each for name, each in variables.items() if type(each) is StandIn}


def _test_of(raised: types.TracebackType) -> str:
    """The lines from the last `if`, `elif` or `assert` to an error; "" if more than 8 lines away."""
    lines: list[str] = []
    for number in range(raised.tb_lineno, max(0, raised.tb_lineno - 8), -1):
        lines.insert(0, linecache.getline(raised.tb_frame.f_code.co_filename, number))
        if lines[0].lstrip().startswith(("if ", "elif ", "assert ")):
            return "".join(lines)
    return ""


def _asks_for_device(raised: types.TracebackType | None) -> bool:
    """Whether a device check in the user's code raised the error."""
    if raised is None or not is_users(raised.tb_frame.f_code.co_filename):
        return False
    return _ASKS_FOR_DEVICE.search(_check_of(raised)) is not None


def _check_of(raised: types.TracebackType) -> str:
    """The condition of the failed `assert`, or of the `if` around the `raise`; "" without one."""
    try:
        tree = ast.parse("".join(linecache.getlines(raised.tb_frame.f_code.co_filename)))
    except SyntaxError:  # a cell of a notebook
        return ""
    for node in ast.walk(tree):
        is_failed = isinstance(node, ast.Assert) and _spans(node, raised.tb_lineno)
        inside = node.body if isinstance(node, ast.If) else []
        if is_failed or any(isinstance(each, ast.Raise) and _spans(each, raised.tb_lineno) for each in inside):
            return ast.unparse(node.test)  # type: ignore[attr-defined]
    return ""


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _innermost(error: BaseException) -> types.TracebackType | None:
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    return raised


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _rehearsable(refusal: Refusal) -> Refusal:
    """For a wrapped model: tm.rewrap needs the device, a rehearsal of the module inside does not."""
    if refusal.code != "R020":
        return refusal
    return refusal._replace(remedy=f"rehearse the module inside: tm.rehearse(step, {refusal.path}.module, ...)")


def _place(device: torch.device) -> torch.device:
    return CPU if device.type in ("cpu", "meta") else place_of(device)


def _unseen(programs: list[Path]) -> Refusal:
    more = f" and {len(programs) - 1} more" if len(programs) > 1 else ""
    remedy = "rehearse with the original module, before torch.jit.script or torch.jit.trace"
    return Refusal(
        "R022", f"{programs[0]}{more}", "TorchScript runs it, not Python, so a rehearsal cannot follow it", remedy
    )
