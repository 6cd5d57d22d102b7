"""Ctrl-C at any moment of a move: afterwards all of the state is where it was, or all of it at the target."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
from hostile import Hostile, Snapshot, hostile
from routes import Route
from threads import threads
from torch import nn

import torchmove as tm
from torchmove import chain
from torchmove.moving import apply as _apply
from torchmove.moving import apply as _repointing
from torchmove.moving import leftovers as _held
from torchmove.moving import movers

pytestmark = pytest.mark.twin

TO_TWIN = Route("cpu-twin", "cpu", "twin:0")
FROM_TWIN = Route("twin-cpu", "twin:0", "cpu")
# Fresh storages on the CPU take the way that CUDA takes: `tensor.data =`.
FRESH = Route("fresh", "cpu", "cpu")
ON_CUDA = [Route("cpu-cuda", "cpu", "cuda:0", "plain"), Route("cuda-cpu", "cuda:0", "cpu", "plain")]
MOMENTS = 100  # of each route

on_every_route = pytest.mark.parametrize(
    "route",
    [TO_TWIN, FROM_TWIN, FRESH, *(pytest.param(each, marks=pytest.mark.cuda) for each in ON_CUDA)],
    ids=repr,
)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _ctrl_c(unfrozen: None) -> Iterator[None]:
    """Ctrl-C does what it does in a program: whoever runs the tests may have something else in mind for it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.getsignal(signal.SIGALRM)
    with threads(1):
        yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def unraisable_is_dropped(monkeypatch) -> None:
    """Where Ctrl-C falls into a __del__, Python shows the interrupt and goes on; whoever keeps it keeps the state."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


def started(state: Hostile, route: Route) -> Hostile:
    route.start(*state.objects)
    return state


def memory() -> int:
    return torch.twin.bytes_in_use() if hasattr(torch, "twin") else torch.cuda.memory_allocated()


# ---------------------------------------------------------------- where is it?


def has_moved(state: Hostile, before: Snapshot) -> bool:
    return state.core.first.weight.data_ptr() != before.addresses["first.weight"]


def assert_untouched(state: Hostile, before: Snapshot) -> None:
    assert state.snapshot() == before


class Arrival(NamedTuple):
    """What a move that nobody disturbs makes of a state."""

    devices: dict[str, torch.device]
    relocated: set[str]


def arrival(state: Hostile, route: Route) -> Arrival:
    before = state.snapshot()
    route.there(*state.objects)
    after = state.snapshot()
    route.back(*state.objects)
    return Arrival(after.devices, relocated(before, after))


def relocated(before: Snapshot, after: Snapshot) -> set[str]:
    return {name for name, address in after.addresses.items() if address != before.addresses[name]}


def assert_arrived(state: Hostile, before: Snapshot, expected: Arrival) -> None:
    after = state.snapshot()
    assert Arrival(after.devices, relocated(before, after)) == expected
    assert (after.identity, after.bits, after.forms) == (before.identity, before.bits, before.forms)


class Modes(NamedTuple):
    """What a move switches while it runs, in Python and in torch."""

    collects: bool
    freezes: bool
    has_gradients: bool
    infers: bool
    calls_subclasses: Any
    handler: Any


def modes() -> Modes:
    return Modes(
        gc.isenabled(),
        gc.get_freeze_count() > 0,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._get_torch_function_state(),
        signal.getsignal(signal.SIGINT),
    )


def switch_back(before: Modes) -> None:
    gc.enable()
    gc.unfreeze()
    torch.set_grad_enabled(before.has_gradients)
    torch._C._set_torch_function_state(before.calls_subclasses)


# ---------------------------------------------------------------- at random moments


class Outcome:
    """What came of a call during which Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.pressed = self.finished = self.interrupted = False

    def press(self, *_: Any) -> None:
        self.pressed = True
        press_ctrl_c()


def interrupt(call: Callable[[], Any], after: float) -> Outcome:
    """Press Ctrl-C some seconds after a call began. If it is over by then, wait for that: it must not come later."""
    outcome = Outcome()
    signal.signal(signal.SIGALRM, outcome.press)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        call()
        outcome.finished = True
        while not outcome.pressed:
            time.sleep(0.001)
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome


def seconds_of_a_move(state: Hostile, route: Route) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        route.there(*state.objects)
        times.append(time.perf_counter() - began)
        route.back(*state.objects)
    return statistics.median(times)


def is_whole(state: Hostile, before: Snapshot, expected: Arrival, used: int) -> bool:
    """All of it is where it was, or all of it at the target: True."""
    if has_moved(state, before):
        assert_arrived(state, before, expected)
        return True
    assert_untouched(state, before)
    if memory() > used:
        gc.collect()  # an interrupt that falls into a generator can leave a cycle; looking for none each time is slow
    assert memory() <= used
    return False


@pytest.mark.slow
@on_every_route
def test_ctrl_c_at_a_random_moment_leaves_the_state_whole(route, unraisable_is_dropped):
    state, untouched = started(hostile(), route), started(hostile(), route)
    expected, span = arrival(state, route), seconds_of_a_move(state, route)
    moments, outcomes, switches = random.Random(0), Counter(), modes()
    for number in range(3 * MOMENTS):
        # Many come when the move is over: those do not count, and there are more of them until enough fell into it.
        if number >= MOMENTS and outcomes["inside", "rolled back"] > MOMENTS / 3:
            break
        before, used = state.snapshot(), memory()
        outcome = interrupt(lambda: route.there(*state.objects), after=moments.uniform(0, span))
        moved = is_whole(state, before, expected, used)
        assert moved or not outcome.finished
        assert signal.getsignal(signal.SIGINT) is switches.handler
        switch_back(switches)
        if not moved or route not in ON_CUDA:  # the CPU and the GPU do not compute the same bits
            state.train()
            untouched.train()
            assert state.bits() == untouched.bits()
        outcomes["behind" if outcome.finished else "inside", "moved" if moved else "rolled back"] += 1
        if moved:
            route.back(*state.objects)
    assert outcomes["inside", "rolled back"] > MOMENTS / 3, outcomes


# ---------------------------------------------------------------- at each line


class Tripwire:
    """Presses Ctrl-C when the n-th line of some files is about to run."""

    def __init__(self, at: int, files: Container[str]) -> None:
        self.at, self.files, self.lines, self.place = at, files, 0, ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = Path(frame.f_code.co_filename).name
        if name not in self.files:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.place = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
                press_ctrl_c()
        return self


class Line(NamedTuple):
    """What came of Ctrl-C at one line of a move."""

    place: str
    devices: set[torch.device]
    before: Modes
    after: Modes
    interrupted: bool


def interrupt_at_line(model: nn.Module, number: int, files: Container[str]) -> Line:
    wire, before, tracer, interrupted = Tripwire(number, files), modes(), sys.gettrace(), False
    try:
        sys.settrace(wire)
        try:
            tm.move(model, to="twin:0")
        finally:
            sys.settrace(tracer)
    except KeyboardInterrupt:
        interrupted = True
    devices = {model.weight.device, model.device, model.table.device, model.table._values().device}
    return Line(wire.place, devices, before, modes(), interrupted)


def interrupt_at_every_line(*files: str) -> Iterator[Line]:
    """Move a small state again and again, with Ctrl-C one line later each time, until a move gets through."""
    model = nn.Linear(1, 1, bias=False)
    model.device, model.table = torch.device("cpu"), torch.eye(2).to_sparse()
    for number in itertools.count(1):
        line = interrupt_at_line(model, number, files)
        switch_back(line.before)
        if not line.place:
            return
        yield line
        tm.move(model, to="cpu")


@pytest.mark.slow
def test_ctrl_c_at_any_line_leaves_the_state_whole(unraisable_is_dropped):
    lines = interrupt_at_every_line(
        *("apply.py", "leftovers.py", "guards.py", "chain.py", "undo.py"),
        *("rebinding.py", "views.py", "batches.py", "plain.py"),
    )
    ends = Counter()
    for line in lines:
        assert len(line.devices) == 1, line
        assert line.after.handler is line.before.handler, line
        ends[str(*line.devices)] += 1
    assert ends["cpu"] > ends["twin:0"] > 0


@pytest.mark.slow
def test_ctrl_c_at_any_line_leaves_torch_and_python_as_they_were(unraisable_is_dropped):
    lines = list(interrupt_at_every_line("guards.py"))
    assert [line.place for line in lines if line.after != line.before] == []


@pytest.mark.slow
def test_ctrl_c_is_never_lost(unraisable_is_dropped):
    lines = interrupt_at_every_line("apply.py", "leftovers.py", "rebinding.py", "storages.py")
    assert [line.place for line in lines if not line.interrupted] == []


@pytest.mark.slow
def test_ctrl_c_at_any_line_raises_nothing_else(monkeypatch):
    raised: list[type] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_type))
    for _ in interrupt_at_every_line("leftovers.py", "storages.py"):
        pass
    assert set(raised) <= {KeyboardInterrupt}


# ---------------------------------------------------------------- at each stage, and what the user has made of Ctrl-C

STAGES = {
    "surveying": (chain, "survey_objects"),
    "copying": (movers.Plain, "copy"),
    "cutting": (_apply, "view_on"),
    "looking back": (_held.OldStorages, "record"),
    "rebinding": (_apply, "rebind"),
    "repointing": (_repointing, "_write"),
    "settling": (_apply, "call_overrides"),
    "proving": (chain, "verify_move"),
}
COMMITTING = {"looking back", "rebinding", "repointing", "settling", "proving"}


def press_at(stage: str, patch: pytest.MonkeyPatch, *, times: int = 1) -> None:
    """Ctrl-C comes when a stage is about to begin, the first times it does."""
    owner, name = STAGES[stage]
    real, left = getattr(owner, name), [None] * times

    def pressed(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            press_ctrl_c()
        return real(*args, **options)

    patch.setattr(owner, name, pressed)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
@on_every_route
def test_ctrl_c_at_any_stage_rolls_the_move_back(route, stage, times, monkeypatch):
    if route is FRESH and stage == "repointing":
        pytest.skip("a device that stays is not remembered anew")
    state = started(hostile(()), route)
    before, used = state.snapshot(), memory()
    with monkeypatch.context() as patch:
        press_at(stage, patch, times=times)
        with pytest.raises(KeyboardInterrupt):
            route.there(*state.objects)
    assert_untouched(state, before)
    assert memory() <= used
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    route.there(*state.objects)


@on_every_route
def test_ctrl_c_while_a_failed_move_is_rolled_back_waits_for_that(route, monkeypatch):
    state = started(hostile(()), route)
    before, used = state.snapshot(), memory()

    def fail(*_: Any) -> None:
        press_ctrl_c()
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(_apply, "call_overrides", fail)
        with pytest.raises(KeyboardInterrupt) as caught:
            route.there(*state.objects)
    assert isinstance(caught.value.__context__, tm.MoveFailed)
    assert_untouched(state, before)
    assert memory() <= used


def move_uninterrupted(state: Hostile) -> None:
    """A KeyboardInterrupt that nobody asked for would end the whole run of tests."""
    try:
        TO_TWIN.there(*state.objects)
    except KeyboardInterrupt:
        pytest.fail("a KeyboardInterrupt was raised past the handler")


@pytest.mark.parametrize("stage", STAGES)
def test_a_handler_of_the_users_own_is_called_once_and_the_move_goes_on(stage, monkeypatch):
    calls: list[int] = []

    def handler(number: int, _: FrameType | None) -> None:
        calls.append(number)

    state = hostile(())
    signal.signal(signal.SIGINT, handler)
    press_at(stage, monkeypatch)
    move_uninterrupted(state)
    assert calls == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler
    assert state.core.first.weight.device == TO_TWIN.away


class Stop(BaseException):
    """What a user's handler may raise instead of a KeyboardInterrupt."""


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_handler_of_the_users_own_raises_is_raised(stage, monkeypatch):
    """Before or after the commit: the state is whole either way."""

    def handler(*_: Any) -> None:
        raise Stop

    state = hostile(())
    expected, before = arrival(state, TO_TWIN), state.snapshot()
    used = memory()
    signal.signal(signal.SIGINT, handler)
    press_at(stage, monkeypatch)
    with pytest.raises(Stop):
        move_uninterrupted(state)
    assert signal.getsignal(signal.SIGINT) is handler
    is_whole(state, before, expected, used)


@pytest.mark.parametrize("stage", STAGES)
def test_an_ignored_ctrl_c_stays_ignored(stage, monkeypatch):
    state = hostile(())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    press_at(stage, monkeypatch)
    move_uninterrupted(state)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert state.core.first.weight.device == TO_TWIN.away


# ---------------------------------------------------------------- from another thread


def start_in_a_thread(call: Callable[[], Any]) -> Callable[[], None]:
    """The result waits for the end. Not by join: if Ctrl-C falls into that, some Pythons take the end for reached."""
    ended: list[bool] = []

    def run() -> None:
        try:
            call()
        finally:
            ended.append(True)

    def wait() -> None:
        while not ended:
            time.sleep(0.001)

    threading.Thread(target=run).start()
    return wait


@on_every_route
def test_a_move_in_another_thread_is_not_disturbed(route):
    """Python gives Ctrl-C to the main thread, which waits here for the other."""
    state = started(hostile(), route)
    expected, span, moments = arrival(state, route), seconds_of_a_move(state, route), random.Random(0)
    for _ in range(10):
        before = state.snapshot()
        wait = start_in_a_thread(lambda: route.there(*state.objects))
        assert interrupt(wait, after=moments.uniform(0, span)).interrupted
        wait()
        assert_arrived(state, before, expected)
        route.back(*state.objects)
