"""Two things go wrong at once: a commit fails, and at any line of its roll-back something else is raised. The state is
what it was all the same, or the error says what is not; and nothing stays switched.

`PYTHONPATH=tests python tests/moving/test_two_faults.py` tries all lines of all states, and counts.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import signal
import sys
import threading
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from laws import bits, form
from routes import Route
from test_faults import COMMITTING
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import torchmove as tm
from torchmove import chain
from torchmove.moving import apply as _apply
from torchmove.moving import apply as _repointing

pytestmark = pytest.mark.twin

PACKAGE = str(Path(tm.__file__).parent)
FRESH, TWIN = Route("fresh", "cpu", "cpu"), Route("twin", "cpu", "twin:0")
BACK = Route("twin-cpu", "twin:0", "cpu")


# ---------------------------------------------------------------- states


@dataclasses.dataclass(frozen=True)
class Frozen:
    device: torch.device


class Settling(nn.Module):
    """Changes all it holds when it is moved, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.cache, self.order, self.seen, self.last = {"old": 1}, [1, 2], {3}, deque([4])
        self.odd: Any = OrderedDict(a=1, b=2)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.cache.clear()
        self.cache["new"] = torch.ones(2, device=self.weight.device)
        self.order.append(3)
        self.seen.add(5)
        self.last.appendleft(6)
        self.odd.move_to_end("a")
        self.settled = True
        return self


def trained() -> list[Any]:
    """Ties, views, hooks, gradients, an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    flat = torch.arange(6.0)
    model.view = nn.Parameter(flat[2:4])
    model.flat = flat
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    model.view.register_post_accumulate_grad_hook(lambda parameter: None)
    optimizer = torch.optim.AdamW(model.parameters())
    (model(torch.ones(1, 2)) * model.view).sum().backward()
    optimizer.step()
    return [model, optimizer]


def shells() -> list[Any]:
    """Tensors made of tensors, with a gradient made of tensors."""
    model = nn.Module()
    model.coo = nn.Parameter(torch.eye(2).to_sparse())
    model.coo.grad = torch.eye(2).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that these are in beta
        model.csr = torch.eye(2).to_sparse_csr()
    model.pair = TwoTensor(torch.ones(2), torch.zeros(2))
    model.mirrored = torch.tensor([1 + 2j, 3j]).conj()
    return [model]


def holders() -> list[Any]:
    """Devices remembered in many places, and a module that changes what it holds."""
    here = torch.device("cpu")

    def on_device() -> torch.device:
        return here

    model = Settling()
    model.device, model.places, model.frozen = here, {"device": here, "device_name": "cpu"}, Frozen(here)
    model.listed, model.queued, model.function = [here], deque([here]), on_device
    model.found = {"first": 1, here: torch.ones(1), "last": 2}
    model.kept = OrderedDict([(here, torch.ones(1)), ("last", 2)])
    model.rnn = nn.RNN(1, 1)
    return [model]


STATES = {each.__name__: each for each in (trained, shells, holders)}


def tensors_of(objects: list[Any]) -> list[Tensor]:
    """Those made of tensors too; not their parts, which are made anew at each look."""
    inventory = tm.survey(*objects)
    parts = {id(part) for shell in inventory.composites for part in shell.parts}
    return [
        *(shell.tensor for shell in inventory.composites),
        *(t for t in inventory.tensors.objects if id(t) not in parts),
    ]


def remembered(value: Any, seen: dict[int, Any]) -> Any:
    """Containers and objects as they are, by identity and in order; not tensors."""
    if isinstance(value, (Tensor, type, torch.dtype)) or id(value) in seen:
        return id(value)
    seen[id(value)] = value
    if isinstance(value, dict):
        inside = [(id(key), remembered(each, seen)) for key, each in value.items()]
        return id(value), inside, [*map(id, value)] if isinstance(value, OrderedDict) else None
    if isinstance(value, set):
        return id(value), sorted(map(id, value))
    if isinstance(value, (list, tuple, deque)):
        return id(value), [remembered(each, seen) for each in value]
    if callable(value) and getattr(value, "__closure__", None):
        return id(value), [id(cell.cell_contents) for cell in value.__closure__]
    if hasattr(value, "__dict__"):
        return id(value), remembered(vars(value), seen)
    return id(value) if not isinstance(value, (int, float, str, torch.device)) else (id(value), value)


class Snapshot:
    """All that a move may touch, to the last bit."""

    def __init__(self, objects: list[Any]) -> None:
        self.objects, self.tensors = objects, tensors_of(objects)
        self.facts = self.now()

    def now(self) -> list[Any]:
        about = [
            (id(each), str(each.device), bits(each), form(each), address(each), each._version, *attached(each))
            for each in self.tensors
        ]
        return [about, remembered(self.objects, {})]

    def is_as_before(self) -> bool:
        return self.now() == self.facts


def address(tensor: Tensor) -> tuple[int, ...]:
    if isinstance(tensor, TwoTensor):
        return address(tensor.a) + address(tensor.b)
    if tensor.layout is torch.sparse_coo:
        return address(tensor._indices()) + address(tensor._values())
    if tensor.layout is torch.sparse_csr:
        return address(tensor.crow_indices()) + address(tensor.values())
    return (tensor.data_ptr(),)


def attached(tensor: Tensor) -> tuple[Any, ...]:
    grad = tensor.grad if tensor.is_leaf else None
    hooks, late = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return id(grad), id(hooks), id(late), [*hooks] if hooks else None, [*late] if late else None, tensor.requires_grad


# ---------------------------------------------------------------- faults


class First(RuntimeError):
    """What breaks the commit off."""


class Second(BaseException):
    """What is raised on top of that."""


class SecondError(Exception):
    """The same, of those that `except Exception` catches."""


STAGES = {
    **COMMITTING,
    "renaming": (_repointing, "refill"),
    "a module's own _apply": (Settling, "_apply"),
}


class Tripwire:
    """Once it is armed, does something when the n-th line of the package is about to run."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.at, self.action, self.lines, self.place, self.is_armed = at, action, 0, "", False

    def arm(self) -> None:
        """From now on, in the functions that are under way too."""
        self.is_armed = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                frame.f_trace = self
            frame = frame.f_back
        sys.settrace(self)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                name = Path(frame.f_code.co_filename).name
                self.place = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
                self.action()
        return self


def armed_by(wire: Tripwire, owner: Any, name: str, *, late: bool) -> Any:
    """The function, but it arms the wire and raises: before its work, or behind it. The first time."""
    real = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        if wire.is_armed:
            return real(*args, **options)
        if late:
            real(*args, **options)
        wire.arm()
        raise First

    return call


class Shot:
    """The second fault of a try: of a class of its own, since Python chains errors."""

    kind: type[BaseException] = Second


def shoot() -> None:
    raise Shot.kind


def handled(*_: object) -> None:
    raise Shot.kind


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def alarm() -> None:
    signal.raise_signal(signal.SIGALRM)


def send_asynchronously() -> None:
    """As another thread would: Python raises it at the next moment that it sees fit."""
    me = ctypes.c_ulong(threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(Shot.kind))


SECOND: dict[str, tuple[Callable[[], None], type[BaseException]]] = {
    "raised": (shoot, Second),
    "an error raised": (shoot, SecondError),
    "SIGTERM": (terminate, Second),
    "SIGALRM": (alarm, Second),
    "sent": (send_asynchronously, Second),
}


def loaded(second: str) -> Callable[[], None]:
    action, base = SECOND[second]
    Shot.kind = type(base.__name__, (base,), {})
    return action


def switched() -> tuple[Any, ...]:
    """What a move switches in Python and in torch."""
    return (
        gc.isenabled(),
        gc.get_freeze_count() > 0,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._get_torch_function_state(),
        sys.getswitchinterval(),
        threading.active_count(),
        [signal.getsignal(number) for number in sorted(signal.valid_signals())],
    )


@contextmanager
def handling() -> Iterator[None]:
    before = {number: signal.signal(number, handled) for number in (signal.SIGTERM, signal.SIGALRM)}
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    todo, seen = [error], set()
    while todo:
        each = todo.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += [each.__cause__, each.__context__]


def tripped(wire: Tripwire, call: Callable[[], object]) -> BaseException | None:
    tracer = sys.gettrace()
    try:
        try:
            call()
        finally:
            sys.settrace(tracer)
    except (First, Second, SecondError, tm.TorchmoveError) as error:
        return error
    return None


# ---------------------------------------------------------------- the sweeps


class Sweep:
    """A state that is moved again and again, with the fault one line later each time, until it falls behind the end."""

    def __init__(self, make: Callable[[], list[Any]], route: Route) -> None:
        self.make, self.route = make, route
        self.outcomes: Counter[str] = Counter()
        self.bad: list[str] = []
        self.renew()

    def renew(self) -> None:
        self.objects = self.make()
        self.route.start(*self.objects)
        self.before, self.switches = Snapshot(self.objects), switched()

    def roll_back_with(self, stage: str, late: bool, second: str, *, every: int = 1) -> int:
        owner, name = STAGES[stage]
        for at in itertools.count(1, every):
            wire = Tripwire(at, loaded(second))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, armed_by(wire, owner, name, late=late))
                error = tripped(wire, lambda: self.route.there(*self.objects))
            if not wire.is_armed:
                self.renew()
                return 0  # this state does not come to that stage
            self.judge(error, wire, f"{'after' if late else 'before'} {stage}, {second}", may_move=False)
            if not wire.place:
                return at
        raise AssertionError

    def interrupt(self, stage: str, second: str, *, every: int = 1) -> None:
        real = getattr(_apply, stage)
        for at in itertools.count(1, every):
            wire = Tripwire(at, loaded(second))

            def armed(*args: Any, wire: Tripwire = wire) -> Any:  # arms before the commit begins
                wire.arm()
                return real(*args)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_apply, stage, armed)
                error = tripped(wire, lambda: self.route.there(*self.objects))
            self.judge(error, wire, f"in {stage}, {second}", may_move=True)
            if not wire.place:
                return

    def judge(self, error: BaseException | None, wire: Tripwire, what: str, *, may_move: bool) -> None:
        place = f"{what}, at {wire.place or 'the end'}"
        not_undone = next((each.not_undone for each in chain_of(error) if isinstance(each, tm.MoveFailed)), "")
        if self.before.is_as_before():
            outcome = "whole"
        elif not_undone:
            outcome = "said"
        elif may_move and self.has_arrived():
            outcome = "moved"
        else:
            outcome = "torn"
            self.bad.append(f"{place}: torn")
        self.outcomes[outcome] += 1
        # An error in what waits for a device counts as one of the device: the first one is raised, and no other.
        arrived = any(type(each) is Shot.kind for each in chain_of(error))
        if wire.place and not arrived and (error is None or not issubclass(Shot.kind, SecondError)):
            self.bad.append(f"{place}: lost")
        if wire.place and "SIG" in what and type(error) is not Shot.kind and not not_undone:
            self.bad.append(f"{place}: {type(error).__name__} instead of what the handler raised")
        for each in [*chain_of(error)]:
            # Raised at a line that no exception comes from, one may stay Python's current one, and the next be chained.
            each.__context__ = each.__cause__ = each.__traceback__ = None
        if switched() != self.switches:
            self.bad.append(f"{place}: something stays switched: {switched()}")
            raise AssertionError(self.bad)
        if outcome != "whole":
            self.renew()

    def has_arrived(self) -> bool:
        if not self.route.is_fresh:
            return not tm.plan(*self.objects, to=self.route.away).moves and self.same_bits()
        pairs = zip(map(address, self.before.tensors), [fact[4] for fact in self.before.facts[0]], strict=True)
        return all({*now}.isdisjoint(old) for now, old in pairs) and self.same_bits()

    def same_bits(self) -> bool:
        return all(bits(each) == fact[2] for each, fact in zip(self.before.tensors, self.before.facts[0], strict=True))


OFTEN = {"setting gradients", "proving"}  # where all kinds of second faults are tried


def main() -> None:
    """All lines, or those of one state: `trained`, for example, given as an argument."""
    from twin import install

    install()
    total: Counter[str] = Counter()
    bad: list[str] = []
    states = [STATES[name] for name in sys.argv[1:]] or STATES.values()
    with handling():
        for make, route in itertools.product(states, (FRESH, TWIN)):
            sweep = Sweep(make, route)
            for stage, late, second in itertools.product(STAGES, (False, True), SECOND):
                if (second == "raised" and not late) or (stage in OFTEN and late):
                    sweep.roll_back_with(stage, late, second)
            print(make.__name__, route, "roll-back", dict(sweep.outcomes), flush=True)
            total += sweep.outcomes
            sweep.outcomes.clear()
            sweep.interrupt("_commit", "SIGTERM")
            print(make.__name__, route, "commit", dict(sweep.outcomes), flush=True)
            total += sweep.outcomes
            bad += sweep.bad
    print("in all", dict(total), "bad", len(bad))
    for each in bad[:60]:
        print(each)


# ---------------------------------------------------------------- of which these are tests


@pytest.fixture(autouse=True)
def _handling(twin: Any, unfrozen: None) -> Iterator[None]:
    with handling():
        yield


routes = pytest.mark.parametrize("route", [FRESH, TWIN], ids=repr)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize(("make", "stage"), [(trained, "setting gradients"), (shells, "rebuilding a composite tensor")])
@routes
def test_whatever_is_raised_within_a_roll_back_the_state_is_whole(route, make, stage, second):
    """At one line in five, and of the other kinds of faults at one in eleven."""
    sweep = Sweep(make, route)
    sweep.roll_back_with(stage, False, second, every=5 if second == "raised" else 11)
    assert sweep.bad == []
    assert sweep.outcomes["whole"] > 30


@pytest.mark.sampled(6)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
@routes
def test_a_second_fault_after_one_at_any_stage_leaves_the_state_whole(route, stage, late):
    for make in STATES.values():
        sweep = Sweep(make, route)
        sweep.roll_back_with(stage, late, "raised", every=131)
        assert sweep.bad == []
        assert sweep.outcomes.keys() <= {"whole"}


@pytest.mark.slow
@routes
def test_a_signal_at_any_line_of_the_commit_leaves_the_state_whole(route):
    sweep = Sweep(shells, route)
    sweep.interrupt("_commit", "SIGTERM", every=61)
    assert sweep.bad == []
    assert sweep.outcomes["whole"] > 1
    assert sweep.outcomes["moved"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("second", ["raised", "SIGTERM"])
@routes
def test_a_fault_at_any_line_of_copying_leaves_the_state_whole(route, second):
    sweep = Sweep(trained, route)
    sweep.interrupt("_copy", second, every=41)
    assert sweep.bad == []
    assert sweep.outcomes["whole"] > 20


@pytest.mark.slow
@routes
def test_what_cannot_be_undone_is_said_whatever_else_is_raised(route, monkeypatch):
    """A step back that fails each time, and a fault at each line: the error says what it was."""
    sweep = Sweep(holders, route)
    real = _apply.call_overrides

    def broken() -> None:
        raise OSError("stuck")

    def overrides(plan: Any, undo: Any) -> Any:
        undo.append(broken)
        return real(plan, undo)

    monkeypatch.setattr(_apply, "call_overrides", overrides)
    for at in range(1, 400, 13):
        wire = Tripwire(at, loaded("raised"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chain, "verify_move", armed_by(wire, chain, "verify_move", late=False))
            error = tripped(wire, lambda: route.there(*sweep.objects))
        said = [each.not_undone for each in chain_of(error) if isinstance(each, tm.MoveFailed)]
        assert "OSError: stuck" in said, wire.place
        assert sweep.before.is_as_before()
        assert switched() == sweep.switches


if __name__ == "__main__":
    main()
