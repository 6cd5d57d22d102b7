"""Where an optimizer puts its tensors: what is learned from a first step is what the table says, and what a native
start on the device does."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch_own import OPTIMIZERS, flag_sets, optimizer_cases

import torchmove as tm
from torchmove.planning import learning

pytestmark = [pytest.mark.twin, pytest.mark.filterwarnings("ignore")]  # torch has much to say about its own samples

ROWS = [
    pytest.param(info, flags, id="-".join([info.name, *(flag if on else f"no_{flag}" for flag, on in flags.items())]))
    for info in OPTIMIZERS
    for flags in flag_sets(info, "cpu")
]


def placement(optimizer: Optimizer, to: Any) -> dict[str, str]:
    plan = tm.plan(optimizer, to=to)
    assert not [note for note in plan.notes if note.code == "N063"]
    slots = plan.inventory.tensors
    return {str(slot.path): place.type for slot, place in zip(slots, plan.placement, strict=True)}


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("info", "flags"), ROWS)
def test_learned_is_as_the_table_says_and_as_a_native_start(info, flags):
    home = torch.device("twin:0")
    for case in optimizer_cases(info, flags):
        optimizer = case.start(home).optimizer
        native = {str(slot.path): slot.device.type for slot in tm.survey(optimizer).tensors}
        assert placement(optimizer, "twin:1") == native, case
        optimizer.__class__ = type("Unknown", (info.optim_cls,), {"__module__": __name__})
        assert not learning.learned_places_of(optimizer, home).why_not, case
        assert placement(optimizer, "twin:1") == native, case


class Counts(torch.optim.SGD):
    """Keeps a clock and its moments on the CPU, and a sum in its groups on the device."""

    steps_taken = 0

    @torch.no_grad()
    def step(self, _=None):
        type(self).steps_taken += 1
        print("a step")
        warnings.warn("a step", stacklevel=1)
        torch.rand(3)
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("clock", torch.zeros(()))
                state.setdefault("moments", torch.zeros(parameter.shape))
                state["clock"] += 1
                group["sum"] = group.get("sum", torch.zeros((), device=parameter.device)) + parameter.sum()
        self.threshold = torch.ones(())


class Silent(torch.optim.SGD):
    """Cannot be simulated: it wants what it was not given."""

    def __init__(self, params, *, open_file):
        super().__init__(params)
        self.open_file = open_file

    def step(self, _=None):
        raise RuntimeError("no")


def stepped(kind=Counts):
    optimizer = kind([nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2))], lr=0.1)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()
    return optimizer


def test_an_optimizer_keeps_what_it_makes_where_it_makes_it(route):
    optimizer = stepped()
    tm.move(optimizer, to=route.away)
    state = [*optimizer.state.values()]
    kept = [*(each[name] for each in state for name in ("clock", "moments")), optimizer.threshold]
    assert {each.device.type for each in kept} == {"cpu"}
    assert optimizer.param_groups[0]["sum"].device == route.away
    assert tm.verify(optimizer, on=route.away).ok


def test_learning_leaves_nothing_behind(capsys, recwarn):
    kind = type("Unseen", (Counts,), {})
    optimizer = stepped(kind)
    capsys.readouterr()
    hooks = []
    optimizer.register_step_post_hook(lambda *_: hooks.append("its own"))
    everywhere = register_optimizer_step_post_hook(lambda *_: hooks.append("all"))
    before, taken = copy.deepcopy(optimizer.state_dict()), kind.steps_taken
    random, threads = torch.get_rng_state(), torch.is_grad_enabled()
    try:
        learning.learned_places_of(optimizer, torch.device("twin:0"))
    finally:
        everywhere.remove()
    assert kind.steps_taken == taken + 1
    assert (hooks, capsys.readouterr(), [*recwarn]) == ([], ("", ""), [])
    assert torch.get_rng_state().equal(random)
    assert torch.is_grad_enabled() == threads
    assert str(optimizer.state_dict()) == str(before)
    learning.learned_places_of(stepped(kind), torch.device("twin:1"))
    assert kind.steps_taken == taken + 2  # the step of the second itself: its class is known


def test_what_cannot_be_learned_is_noted_where_it_matters():
    optimizer = Silent([nn.Parameter(torch.ones(2))], open_file=lambda: optimizer)
    parameter = optimizer.param_groups[0]["params"][0]
    optimizer.state[parameter]["moments"] = torch.ones(2)
    assert not [note for note in tm.plan(optimizer, to="twin:0").notes if note.code == "N063"]
    optimizer.state[parameter] |= {"step": torch.ones(()), "step_of_one": torch.ones(1), "clock": torch.ones(())}
    plan = tm.plan(optimizer, to="twin:0")
    assert [note.code for note in plan.notes] == ["N063"]
    slots = {slot.what: place.type for slot, place in zip(plan.inventory.tensors, plan.placement, strict=True)}
    assert (slots["step"], slots["step_of_one"], slots["clock"]) == ("cpu", "twin", "twin")


def test_a_users_rule_goes_first():
    class Ruled(Counts):
        pass

    tm.register_rule(Ruled, "clock", "parameter")
    optimizer = stepped(Ruled)
    tm.move(optimizer, to="twin:0")
    assert {state["clock"].device.type for state in optimizer.state.values()} == {"twin"}


def test_torchs_own_classes_and_moves_to_the_cpu_learn_nothing(monkeypatch):
    monkeypatch.setattr(learning, "_learned", lambda *_: pytest.fail("learned"))
    adam = stepped(torch.optim.Adam)
    tm.move(adam, to="twin:0")
    tm.move(adam, to="cpu")
    tm.plan(stepped(type("Unseen", (Counts,), {})), to="cpu")
