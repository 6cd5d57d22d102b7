"""TorchScript modules move, unless a tensor or a device is baked into their programs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import addresses, assert_same, bits, trace
from torch import Tensor, nn
from zoo import numbers

import torchmove as tm
from torchmove import chain
from torchmove.moving import apply as _apply

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Everything(nn.Module):
    """Tensors wherever TorchScript has a place for them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lstm, self.act = nn.Linear(3, 3), nn.LSTM(3, 3), nn.ReLU()
        self.register_buffer("buffer", numbers(3))
        self.plain = numbers(3) + 1
        self.listed = [numbers(3) + 2, self.buffer]
        self.named = {"a": numbers(3) + 3}
        self.pair = (numbers(3) + 4, 2)
        self.nested = {"a": [numbers(3) + 5]}
        self.device = torch.device("cpu")

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.linear(x)) + self.buffer + self.plain + self.listed[0] + self.listed[1]
        y = y * self.named["a"] + self.pair[0] * self.pair[1] + self.nested["a"][0]
        return self.lstm(y)[0] + torch.zeros(3, device=self.device) + torch.ones(3, device=x.device) * 0.5


class Numbers(nn.Module):
    """Numbers that tracing makes tensors of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x)) * 2 + x.shape[0] / 3 - torch.tensor(0.5)
        return torch.where(y > 0, y, torch.tensor(0.25) * torch.tensor(2.0)) ** 2 + torch.zeros_like(y)


def scripted() -> nn.Module:
    return torch.jit.script(Everything())


def traced() -> nn.Module:
    return torch.jit.trace(Numbers(), numbers(2, 3))


def loaded(make: Callable[[], nn.Module]) -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(make(), file)
    file.seek(0)
    return torch.jit.load(file)


class Mixed(nn.Module):
    """A program inside of an eager module, tied to it."""

    def __init__(self) -> None:
        super().__init__()
        eager = Everything()
        self.program, self.trace = torch.jit.script(eager), traced()
        self.linear = eager.linear
        self.shared = eager.named["a"]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.trace(self.program(x))) * self.shared


def of_a_class() -> nn.Module:
    class Old(torch.jit.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.linear, self.plain = nn.Parameter(numbers(3)), nn.Linear(3, 3), numbers(3)

        @torch.jit.script_method
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.weight + self.plain

    return Old()


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "scripted": scripted,
    "traced": traced,
    "scripted and loaded": lambda: loaded(scripted),
    "traced and loaded": lambda: loaded(traced),
    "mixed": Mixed,
    "of a class": of_a_class,
}


def made(make: Callable[[], nn.Module]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    output(model).square().mean().backward()
    optimizer.step()


def output(model: nn.Module) -> Tensor:
    return model(numbers(2, 3).to(next(model.parameters()).device) / 6)


def tensors_of(*objects: Any) -> dict[str, Tensor]:
    return {str(slot.path): slot.tensor for slot in tm.survey(*objects).tensors}


@pytest.mark.parametrize("name", MAKERS)
def test_a_program_moves_and_trains_on(name, route):
    model, optimizer = made(MAKERS[name])
    other, other_optimizer = made(MAKERS[name])
    route.start(model, optimizer)
    before, last = trace(tensors_of(model, optimizer)), bits(output(model).detach())
    receipt = route.there(model, optimizer)
    tensors = tensors_of(model, optimizer)
    assert_same(before, trace(tensors))
    assert {tensor.device for tensor in tensors.values()} == {route.away}
    assert receipt.held == ()
    assert tm.verify(model, optimizer, after=receipt).ok
    assert bits(output(model).detach()) == last or route.away.type == "cuda"
    route.back(model, optimizer)
    tm.move(model, optimizer, to="cpu")
    step(model, optimizer)
    step(other, other_optimizer)
    for one, two in zip(tensors_of(model).values(), tensors_of(other).values(), strict=True):
        assert bits(one) == bits(two)
    route.start(model, optimizer)
    route.there(model, optimizer)
    step(model, optimizer)
    tensors_after = tensors_of(model, optimizer)
    assert {tensor.device for tensor in tensors_after.values()} == {route.away}
    assert all(bits(tensor) != before.bits[name] for name, tensor in tensors_after.items() if "momentum" in name)


def test_what_a_program_holds_is_what_the_eager_module_holds(route):
    model, _ = made(Mixed)
    route.start(model)
    route.there(model)
    program = model.program
    assert program.linear.weight is model.linear.weight
    assert program.named["a"] is model.shared
    assert program.listed[1] is program.buffer
    assert program.lstm._flat_weights[0] is program.lstm.weight_ih_l0
    with torch.no_grad():
        program.buffer.add_(1)
        model.linear.weight.add_(1)
    assert bits(program.listed[1]) == bits(program.buffer)
    assert program.device == route.away


@pytest.mark.parametrize("name", MAKERS)
def test_a_program_is_as_it_was_after_a_failure(name, route, monkeypatch):
    model, optimizer = made(MAKERS[name])
    route.start(model, optimizer)
    tensors = tensors_of(model, optimizer)
    before, places, last = trace(tensors), addresses(tensors), bits(output(model).detach())
    for stage in ("proof", "repoint"):
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> Any:
                raise RuntimeError("broken")

            patch.setattr(*((chain, "verify_move") if stage == "proof" else (_apply, "repoint_all")), fail)
            with pytest.raises(tm.MoveFailed):
                route.there(model, optimizer)
        again = tensors_of(model, optimizer)
        assert_same(before, trace(again))
        assert addresses(again) == places
        assert bits(output(model).detach()) == last
    step(model, optimizer)


def test_a_method_of_a_program_leads_to_what_it_holds(twin):
    model = scripted()
    holder = {"call": model.forward}
    tm.move(holder, to="twin:0")
    assert {tensor.device.type for tensor in tensors_of(model).values()} == {"twin"}


def helper(x: Tensor) -> Tensor:
    return x + torch.zeros(3, device="cpu")


class Baking(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind, self.plain = nn.Linear(3, 3), kind, numbers(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.kind == "tensor":
            return x + self.plain
        if self.kind == "list":
            return torch.cat([x, torch.tensor(1.0)[None]])
        return x + torch.arange(3, device=x.device)


class InAFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return helper(self.linear(x))


class InABranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if x.dim() == 7:
            x = x.to(torch.device("cpu", 0)) + 1
        return x


BAKED = {
    "a traced tensor": (lambda: torch.jit.trace(Baking("tensor"), numbers(3)), r"a 3 float32 constant on cpu"),
    "a traced device": (lambda: torch.jit.trace(Baking("device"), numbers(3)), r"arange\(\.\.\., device='cpu'\)"),
    "a traced number that is not mixed": (
        lambda: torch.jit.trace(Baking("list"), numbers(3)),
        r"a scalar float32 constant on cpu",
    ),
    "a scripted device in a function": (lambda: torch.jit.script(InAFunction()), r"zeros\(\.\.\., device='cpu'\)"),
    "a scripted device in a branch": (lambda: torch.jit.script(InABranch()), r"to\(\.\.\., device='cpu:0'\)"),
    "a frozen module": (
        lambda: torch.jit.freeze(torch.jit.script(nn.Linear(3, 3).eval())),
        r"float32 constant on cpu .*and 1 more",
    ),
    "a module that was optimized": (
        lambda: torch.jit.optimize_for_inference(torch.jit.script(nn.Conv2d(2, 2, 1).eval())),
        r"constant on cpu",
    ),
}


@pytest.mark.twin
@pytest.mark.parametrize("name", BAKED)
def test_what_is_baked_in_is_refused_and_named(name):
    make, said = BAKED[name]
    program, beside = make(), nn.Linear(2, 2)
    with pytest.raises(tm.MoveRefused, match=said) as error:
        tm.move([program, beside], to="twin:0")
    assert {refusal.code for refusal in error.value.refusals} == {"R022"}
    assert len(error.value.refusals) == 1
    assert beside.weight.device.type == "cpu"
    tm.move([program, beside], to="twin:0", keep=[program])
    assert beside.weight.device.type == "twin"


@pytest.mark.twin
def test_what_is_baked_in_is_told_of_the_module_that_has_it():
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 3), InAFunction()))
    (refusal,) = tm.plan(model, to="twin:0").refusals
    assert refusal.path == "model[1]"
    assert f"test_scripted.py:{helper.__code__.co_firstlineno + 1}" in refusal.why


def test_what_is_baked_in_stands_in_the_way_only_of_leaving_it(twin):
    model = torch.jit.script(InAFunction())
    assert tm.plan(model, to="cpu").ok
    model = torch.jit.script(InAFunction()).to("twin:0")
    assert tm.plan(model, to="cpu").ok  # where its program computes
    assert tm.plan(model, to="twin:1").ok  # no better and no worse than before
    assert {refusal.code for refusal in tm.plan([model, nn.Linear(2, 2)], to="twin:0").refusals} == {"R022"}


def test_a_program_may_be_parked_whatever_is_baked_in(twin):
    model = nn.Linear(3, 3).to("twin:0")
    baking = Baking("device").to("twin:0")
    model.program = torch.jit.trace(baking, numbers(3).to("twin:0"))
    last = bits(model.program(numbers(3).to("twin:0")).detach())
    assert {refusal.code for refusal in tm.plan(model, to="cpu").refusals} == {"R022"}
    with tm.parked(model):
        assert model.program.linear.weight.device.type == "cpu"
    assert bits(model.program(numbers(3).to("twin:0")).detach()) == last
