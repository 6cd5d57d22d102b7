"""What belongs to a state and was not given is named, wherever the program keeps it; nothing else is."""

from __future__ import annotations

import copy
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import torchmove as tm
from torchmove.surveying import variables

pytestmark = pytest.mark.twin


@pytest.fixture(autouse=True)
def _this_program_is_small(monkeypatch):
    """All modules of tests that were imported are modules of this program, more than a search takes in."""
    monkeypatch.setattr(variables, "_MOST_OBJECTS", 1_000_000)


TWIN = "twin:0"


def stepped(parameters: Any, kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> torch.optim.Optimizer:
    """An optimizer after its first step."""
    some = [*parameters]
    optimizer = kind(some, lr=1e-3)
    for each in some:
        each.grad = torch.ones_like(each)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def noted(plan: tm.Plan) -> list[str]:
    """The names of what the notes of a plan say was not given."""
    return [note.path for note in plan.notes if note.code == "N070"]


Program = Callable[[], tm.Plan]  # plans to move a part of the state


# ---------------------------------------------------------------- programs in which something is left behind

PROGRAMS: dict[str, tuple[Program, list[str]]] = {}


def names(*paths: str) -> Callable[[Program], Program]:
    def add(program: Program) -> Program:
        PROGRAMS[program.__name__] = program, list(paths)
        return program

    return add


@names("optimizer")
def a_local_variable():
    model = network()
    optimizer = stepped(model.parameters())
    return tm.plan(model, to=TWIN) if optimizer else None


class Trainer:
    kept: Any = None

    def __init__(self) -> None:
        self.model = network()
        self.optimizer = stepped(self.model.parameters())

    def to_device(self) -> tm.Plan:
        return tm.plan(self.model, to=TWIN)


@names("trainer.optimizer")
def an_attribute_of_a_trainer():
    trainer = Trainer()
    return tm.plan(trainer.model, to=TWIN)


@names("self.optimizer")
def an_attribute_of_self():
    return Trainer().to_device()


@names("GLOBAL")
def a_global_variable():
    global GLOBAL
    model = network()
    GLOBAL = stepped(model.parameters())
    try:
        return tm.plan(model, to=TWIN)
    finally:
        del GLOBAL


@names("step.__closure__[0].cell_contents")
def a_closure():
    def build() -> tuple[nn.Module, Callable[[], None]]:
        model = network()
        optimizer = stepped(model.parameters())
        return model, lambda: optimizer.zero_grad(set_to_none=True)

    model, step = build()
    return tm.plan(model, to=TWIN) if step else None


@names("optimizer")
def a_notebook():
    space = {"network": network, "stepped": stepped, "tm": tm}
    for cell in ("model = network()", "optimizer = stepped(model.parameters())", "plan = tm.plan(model, to='twin:0')"):
        exec(cell, space)
    return space["plan"]


@names("optimizers[1]")
def a_list():
    model = network()
    optimizers = [torch.optim.SGD(network().parameters()), stepped(model.parameters())]
    return tm.plan(model, to=TWIN) if optimizers else None


@names("parts['optimizer']")
def a_dict():
    model = network()
    parts = {"name": "run 1", "optimizer": stepped(model.parameters())}
    return tm.plan(model, to=TWIN) if parts else None


@names("Trainer.kept")
def a_class_attribute():
    model = network()
    Trainer.kept = stepped(model.parameters())
    try:
        return tm.plan(model, to=TWIN)
    finally:
        Trainer.kept = None


@dataclass
class State:
    model: nn.Module
    optimizer: Any


@names("state.optimizer")
def a_dataclass():
    model = network()
    state = State(model, stepped(model.parameters()))
    return tm.plan(state.model, to=TWIN)


@names("training.gi_frame.f_locals['optimizer']")
def a_generator():
    def train(model: nn.Module) -> Iterator[int]:
        optimizer = stepped(model.parameters())
        yield 1
        optimizer.step()

    model = network()
    training = train(model)
    next(training)
    return tm.plan(model, to=TWIN)


@names("step.keywords['optimizer']")
def a_partial():
    model = network()
    step = functools.partial(print, optimizer=stepped(model.parameters()))
    return tm.plan(model, to=TWIN) if step else None


@names("optimizer in a_caller_of_the_caller()")
def a_caller_of_the_caller():
    def send(net: nn.Module) -> tm.Plan:
        return tm.plan(net, to=TWIN)

    model = network()
    optimizer = stepped(model.parameters())
    return send(model) if optimizer else None


@names("settings.optimizer")
def another_module():
    model, settings = network(), types.ModuleType("settings")
    settings.__file__, sys.modules["settings"] = "settings.py", settings
    settings.optimizer = stepped(model.parameters())  # type: ignore[attr-defined]
    try:
        del settings
        return tm.plan(model, to=TWIN)
    finally:
        del sys.modules["settings"]


@names("optimizer in work()")
def another_thread():
    model, ready, done = network(), threading.Event(), threading.Event()

    def work(net: nn.Module) -> None:
        optimizer = stepped(net.parameters())
        ready.set()
        done.wait()
        optimizer.zero_grad()

    thread = threading.Thread(target=work, args=(model,))
    thread.start()
    ready.wait()
    try:
        return tm.plan(model, to=TWIN)
    finally:
        done.set()
        thread.join()


@names("scheduler.optimizer")
def a_scheduler():
    model = network()
    scheduler = torch.optim.lr_scheduler.StepLR(stepped(model.parameters()), 1)
    return tm.plan(model, to=TWIN) if scheduler else None


@names("scaler")
def a_gradient_scaler():
    model = network()
    optimizer, scaler = stepped(model.parameters()), torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.unscale_(optimizer)  # other tests may have left optimizers: the scaler tells which one is its own
    return tm.plan(model, optimizer, to=TWIN)


@names("optimizer")
def an_optimizer_beside_a_scaler_that_is_off():
    model = network()
    optimizer, scaler = stepped(model.parameters()), torch.amp.GradScaler("cpu", enabled=False)
    return tm.plan(model, to=TWIN) if optimizer and scaler else None


@names("ema")
def a_moving_average():
    model = network()
    ema = AveragedModel(model)
    return tm.plan(model, to=TWIN) if ema else None


@names("swa")
def stochastic_weight_averaging():
    model = network()
    optimizer, swa = stepped(model.parameters()), AveragedModel(model)
    scheduler = SWALR(optimizer, swa_lr=0.1)
    return tm.plan(model, scheduler, to=TWIN) if swa else None


class Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["average"] = torch.zeros_like(each)


@names("optimizer")
def a_class_of_optimizers_of_the_program():
    model = network()
    optimizer = stepped(model.parameters(), Own)
    return tm.plan(model, to=TWIN) if optimizer else None


@names("head")
def an_optimizer_of_a_submodule():
    model = network()
    head = stepped(model[1].parameters())
    return tm.plan(model, to=TWIN) if head else None


class EMA(nn.Module):
    """As ema-pytorch has it: the model, in a list, and the copy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online_model = [model]
        self.ema_model = copy.deepcopy(model)


class ExponentialMovingAverage:
    """As torch-ema has it."""

    def __init__(self, parameters: Any) -> None:
        self.shadow_params = [each.detach().clone() for each in parameters]


@names("one", "two")
def moving_averages_of_libraries():
    model = network()
    one, two = EMA(model), ExponentialMovingAverage(model.parameters())
    return tm.plan(model, to=TWIN) if one and two else None


@names("optimizer", "ema")
def more_than_one():
    model = network()
    optimizer, ema = stepped(model.parameters()), AveragedModel(model)
    return tm.plan(model, to=TWIN) if optimizer and ema else None


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_named(program):
    work, expected = PROGRAMS[program]
    assert noted(work()) == expected


# ---------------------------------------------------------------- programs in which nothing is

SILENT: dict[str, Program] = {}


def silent(program: Program) -> Program:
    SILENT[program.__name__] = program
    return program


@silent
def it_is_given():
    model = network()
    optimizer = stepped(model.parameters())
    return tm.plan(model, optimizer, to=TWIN)


@silent
def it_is_of_another_model():
    model, other = network(), network()
    optimizer = stepped(other.parameters())
    return tm.plan(model, to=TWIN) if optimizer else None


@silent
def it_is_dead_in_a_cycle():
    model = network()
    trainer = Trainer()
    trainer.model, trainer.optimizer = model, stepped(model.parameters())
    trainer.me = trainer  # type: ignore[attr-defined]
    watcher = weakref.ref(trainer.optimizer)
    del trainer
    assert watcher() is not None
    return tm.plan(model, to=TWIN)


@silent
def its_parameters_stay():
    model = network()
    optimizer = stepped(model[1].parameters())
    return tm.plan(model, keep=[model[1]], to=TWIN) if optimizer else None


@silent
def it_is_given_in_a_list():
    model = network()
    optimizers = [stepped(model.parameters())]
    return tm.plan(model, optimizers, to=TWIN)


@silent
def it_is_given_in_a_dict():
    model = network()
    parts = {"optimizer": stepped(model.parameters())}
    return tm.plan(model, parts, to=TWIN)


@silent
def it_is_given_in_a_trainer():
    trainer = Trainer()
    return tm.plan(trainer, to=TWIN)


@silent
def its_scheduler_is_given():
    model = network()
    scheduler = torch.optim.lr_scheduler.StepLR(stepped(model.parameters()), 1)
    return tm.plan(model, scheduler, to=TWIN)


@silent
def only_the_scheduler_is_not_given():
    model = network()
    optimizer = stepped(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return tm.plan(model, optimizer, to=TWIN) if scheduler else None


@silent
def another_thread_trains_another_state():
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        model = network()
        optimizer = stepped(model.parameters())
        ready.set()
        done.wait()
        optimizer.zero_grad()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        return tm.plan(network(), to=TWIN)
    finally:
        done.set()
        thread.join()


@silent
def it_has_not_stepped():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    return tm.plan(model, to=TWIN) if optimizer else None


@silent
def it_keeps_nothing():
    model = network()
    optimizer = stepped(model.parameters(), torch.optim.SGD)
    return tm.plan(model, to=TWIN) if optimizer else None


@silent
def nothing_moves():
    model = network()
    optimizer = stepped(model.parameters())
    return tm.plan(model, to="cpu") if optimizer else None


@silent
def a_batch_moves():
    model, batch = network(), torch.ones(2, 3)
    optimizer = stepped(model.parameters())
    return tm.plan(batch, to=TWIN) if optimizer else None


@silent
def data_is_not_given():
    model = network()
    loader = DataLoader(TensorDataset(torch.ones(4, 3)))
    loader.optimizer = stepped(model.parameters())  # type: ignore[attr-defined]
    return tm.plan(model, to=TWIN) if loader else None


@silent
def it_is_kept():
    model = network()
    optimizer, ema = stepped(model.parameters()), AveragedModel(model)
    return tm.plan(model, optimizer, ema, keep=[ema, optimizer], to=TWIN)


@silent
def the_average_is_of_another_model():
    model, other = network(), network()
    ema = AveragedModel(other)
    return tm.plan(model, to=TWIN) if ema else None


@silent
def the_average_has_another_shape():
    model = network()
    ema = AveragedModel(nn.Sequential(nn.Linear(2, 2)))
    return tm.plan(model, to=TWIN) if ema else None


@silent
def the_average_is_there_already():
    model = network()
    ema = AveragedModel(model)
    tm.move(ema, to=TWIN)
    return tm.plan(model, to=TWIN)


@silent
def the_scaler_has_not_scaled():
    model = network()
    scaler = torch.amp.GradScaler("cpu")
    return tm.plan(model, stepped(model.parameters()), to=TWIN) if scaler else None


@silent
def the_scaler_may_be_of_another_model():
    model, other = network(), network()
    optimizers, scaler = [stepped(model.parameters()), stepped(other.parameters())], torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    return tm.plan(model, optimizers[0], to=TWIN)


@silent
def a_second_model_is_no_average():
    model = network()
    teacher = copy.deepcopy(model)
    return tm.plan(model, to=TWIN) if teacher else None


@silent
def only_a_weak_reference_leads_to_it():
    model = network()
    optimizer = stepped(model.parameters())
    watcher, cycle = weakref.ref(optimizer), [optimizer]
    cycle.append(cycle)  # type: ignore[arg-type]
    del optimizer, cycle
    assert watcher() is not None
    return tm.plan(model, to=TWIN)


@silent
def it_trains_a_copy():
    model = network()
    optimizer = copy.deepcopy(stepped(model.parameters()))
    return tm.plan(model, to=TWIN) if optimizer else None


@pytest.mark.parametrize("program", SILENT)
def test_nothing_is_noted(program):
    gc.disable()  # a dead cycle stays until it is collected
    try:
        assert noted(SILENT[program]()) == []
    finally:
        gc.enable()


# ---------------------------------------------------------------- what the note says, and where


def test_the_fix_of_a_note_takes_everything_along():
    model = network()
    optimizer, ema = stepped(model.parameters()), AveragedModel(model)
    receipt = tm.move(model, to=TWIN)
    first, second = receipt.plan.notes
    assert str(first) == (
        "N070 optimizer: this AdamW trains the state and was not given: 8 tensors of it left on cpu. "
        "Fix: tm.move(model, optimizer, ema, to='twin:0')"
    )
    assert second.why.startswith(
        "this AveragedModel averages the state and was not given: 4 tensors of it left on cpu. Fix: "
    )
    assert str(first) in str(receipt)
    exec(first.why.partition("Fix: ")[2], {"tm": tm, "model": model, "optimizer": optimizer, "ema": ema})
    assert tm.verify(model, optimizer, ema, on=TWIN)
    assert tm.verify(model, on=TWIN).notes == ()


def test_the_fix_names_the_scheduler_that_leads_to_the_optimizer():
    model = network()
    scheduler = torch.optim.lr_scheduler.StepLR(stepped(model.parameters()), 1)
    (note,) = tm.plan(model, to=TWIN).notes
    assert note.why.endswith("Fix: tm.move(model, scheduler, to='twin:0')")
    assert scheduler


def test_a_move_to_several_devices_has_the_same_note():
    model = network()
    optimizer = stepped(model.parameters())
    (note,) = tm.plan(model, to={"model.0": "twin:0", "*": "twin:1"}).notes
    assert note.why.endswith("8 tensors of it left on cpu. Fix: tm.move(model, optimizer, ...)")
    assert optimizer


def test_a_cast_in_place_leaves_the_dtype_of_the_optimizers_state_behind():
    model = network()
    optimizer = stepped(model.parameters())
    assert noted(tm.plan(model, dtype=torch.float64)) == ["optimizer"]
    assert noted(tm.plan(model, memory_format=torch.channels_last)) == []
    assert optimizer


def test_verify_notes_an_optimizer_whose_state_is_elsewhere():
    model = network()
    optimizer = stepped(model.parameters())
    receipt = tm.move(model, to=TWIN)
    for verdict in (tm.verify(model, on=TWIN), tm.verify(model, after=receipt)):
        assert verdict.ok
        assert [note.path for note in verdict.notes] == ["optimizer"]
        assert "tm.move(model, optimizer, to='twin:0')" in str(verdict)
        assert "N070" in verdict.to_json()
        assert "N070" in verdict.to_html()
    tm.move(optimizer, to=TWIN)
    assert tm.verify(model, on=TWIN).notes == tm.verify(model, after=receipt).notes == ()


def test_the_search_keeps_nothing_alive():
    model = network()
    trainer = Trainer()
    trainer.model, trainer.optimizer = model, stepped(model.parameters())
    watchers = weakref.ref(trainer), weakref.ref(trainer.optimizer)
    plan = tm.plan(model, to=TWIN)
    assert [note.path for note in plan.notes] == ["trainer.optimizer"]
    del trainer
    assert [watcher() for watcher in watchers] == [None, None]


def test_a_dict_of_its_variables_that_a_function_uses_stays():
    def send(net: nn.Module) -> tm.Plan:
        return tm.plan(net, to=TWIN)

    model = network()
    optimizer = stepped(model.parameters())
    mine = locals()
    assert noted(send(model)) == ["optimizer in test_a_dict_of_its_variables_that_a_function_uses_stays()"]
    assert mine["optimizer"] is optimizer


def test_no_code_of_the_program_runs():
    class Touchy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    model, touchy = network(), Touchy()
    optimizer = stepped(model.parameters())
    several = [touchy, {"touchy": touchy}]
    assert noted(tm.plan(model, to=TWIN)) == ["optimizer"]
    assert len(several) == 2
    assert optimizer


def test_objects_that_are_not_what_their_class_says_hide_nothing():
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    class Odd(metaclass=Meta):
        pass

    model = network()
    optimizer = stepped(model.parameters())
    odd = [Odd(), [Odd()], torch.amp.GradScaler("cpu", enabled=False), object.__new__(torch.optim.SGD)]
    broken = object.__new__(torch.optim.SGD)
    vars(broken)["param_groups"] = [1, {}, {"params": None}]
    empty, single = object.__new__(AveragedModel), Odd()
    assert noted(tm.plan(model, to=TWIN)) == ["optimizer"]
    assert len([odd, broken, empty, single]) == 4
    assert optimizer


def test_a_search_that_fails_says_nothing(monkeypatch):
    def fail(_: Any) -> Any:
        raise ValueError

    model = network()
    optimizer = stepped(model.parameters())
    monkeypatch.setattr(variables, "_scopes", fail)
    assert noted(tm.plan(model, to=TWIN)) == []
    assert optimizer


def test_nothing_is_searched_where_nothing_moves(monkeypatch):
    searches = []
    monkeypatch.setattr(variables, "_scopes", lambda _: searches.append(1) or iter(()))
    model = network()
    tm.move(model, to="cpu")
    tm.move(torch.ones(3), to=TWIN)
    assert searches == []
    tm.move(model, to=TWIN)
    assert searches == [1]


def test_a_search_is_bounded(monkeypatch):
    monkeypatch.setattr(variables, "_MOST_OBJECTS", 500)
    seen = []
    model, many = network(), [[[object(), []] for _ in range(50)] for _ in range(1000)]
    found = list(variables.find_variables(lambda _: True, seen.append))
    assert not found
    assert 0 < len(seen) < 10_000 < sum(map(len, many))
    assert noted(tm.plan(model, to=TWIN)) == []
