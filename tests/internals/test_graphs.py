"""Stored results of computations: one whose backward has run is data, one that can still run is in the way."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from laws import bits
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint
from zoo import numbers

import torchmove as tm

pytestmark = pytest.mark.twin


class Model(nn.Module):
    """Ends in sums, which save nothing: backward frees only what is deeper."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)
        self.bias = nn.Parameter(torch.zeros(3))
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner(x).tanh()) @ self.inner.weight + self.bias


def trained() -> tuple[Model, Any, list[Tensor]]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        model.last = model(numbers(4, 3) / 12)
        model.row = model.last[0]
        loss = model.last.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return model, optimizer, losses


def test_a_result_whose_backward_has_run_moves_as_data(route):
    model, optimizer, losses = trained()
    held = {"last": model.last, "row": model.row, **{str(index): loss for index, loss in enumerate(losses)}}
    before = {name: bits(tensor) for name, tensor in held.items()}
    route.start(model, optimizer, losses)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        receipt = route.there(model, optimizer, losses)
    assert {tensor.device for tensor in held.values()} == {route.away}
    assert {name: bits(tensor) for name, tensor in held.items()} == before
    assert model.last is held["last"]
    assert model.row.untyped_storage().data_ptr() == model.last.untyped_storage().data_ptr()
    assert tm.verify(model, optimizer, losses, after=receipt).ok
    with pytest.raises(RuntimeError):
        losses[0].backward()
    assert model(torch.ones(2, 3, device=route.away)).device == route.away


def test_a_note_names_the_path_of_a_spent_result():
    model, optimizer, losses = trained()
    notes = [note for note in tm.plan(model, optimizer, losses, to="twin:0").notes if note.code == "N061"]
    assert notes[0].path.startswith("model.last")


def test_a_result_that_retains_its_gradient_moves_or_stays_with_a_reason(route):
    model = Model()
    model.last = model.inner(numbers(4, 3)).tanh()
    model.last.retain_grad()
    model.last.square().sum().backward()
    gradient, before = model.last.grad, bits(model.last)
    route.start(model)
    receipt = route.there(model)
    moved = model.last.device == route.away
    assert moved or "model.last" in {str(stay.path) for stay in receipt.plan.stays}
    assert model.last.grad is gradient
    assert gradient.device == model.last.device
    assert bits(model.last) == before


class Saves(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, None)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


def embedded(model: Model) -> Tensor:
    table = nn.Embedding(3, 3)
    table.weight = model.inner.weight
    return table(torch.tensor([0, 1]))


def with_hooks(model: Model) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return model(numbers(4, 3))


COMPUTATIONS = {
    "a product": lambda model: numbers(2, 3) @ model.inner.weight,
    "a custom function": lambda model: Saves.apply(model.inner.weight),
    "indexing": lambda model: model.inner.weight[torch.tensor([0, 1])],
    "an embedding": embedded,
    "a list of tensors": lambda model: torch.stack([model.bias.exp(), model.bias.exp()]),
    "a checkpoint": lambda model: checkpoint(model, numbers(4, 3), use_reentrant=False),
    "a reentrant checkpoint": lambda model: checkpoint(
        model, numbers(4, 3).requires_grad_(), use_reentrant=True, preserve_rng_state=False
    ),
    "hooks on saved tensors": with_hooks,
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_live_and_spent_graphs_are_distinguished(name):
    model = Model()
    model.last = COMPUTATIONS[name](model)
    with pytest.raises(tm.MoveRefused) as refused:
        tm.move(model, to="twin:0")
    assert "R032" in {refusal.code for refusal in refused.value.refusals}
    model.last.sum().backward(retain_graph=True)
    assert not tm.plan(model, to="twin:0").ok
    model.last.sum().backward()
    tm.move(model, to="twin:0")
    assert model.last.device.type == "twin"


def test_a_live_result_is_named_with_a_fix_that_can_be_pasted():
    model = Model()
    model.last = {"loss": model(numbers(4, 3)).sum()}
    (refusal,) = [each for each in tm.plan(model, to="twin:0").refusals if each.code == "R032"]
    assert refusal.path == "model.last['loss']"
    exec(refusal.remedy, {"model": model})
    assert tm.plan(model, to="twin:0").ok


def test_a_graph_of_which_a_part_has_run_is_spent():
    model = Model()
    trunk = model.inner(numbers(4, 3)).tanh()
    one, model.last = (trunk @ model.inner.weight).sum(), (trunk * model.bias).sum()
    one.backward()
    with pytest.raises(RuntimeError, match="second time"):
        model.last.backward()
    tm.move(model, to="twin:0")
    assert model.last.device.type == "twin"


def test_a_graph_of_sums_alone_can_run_again_and_is_refused():
    model = Model()
    model.last = model.bias + model.bias
    model.last.sum().backward()
    assert {each.code for each in tm.plan(model, to="twin:0").refusals} == {"R032", "R033"}


def test_a_graph_deeper_than_pythons_stack():
    model = Model()
    model.last = model.bias.exp()
    for _ in range(5000):
        model.last = model.last + 1
    assert not tm.plan(model, to="twin:0").ok
    model.last.sum().backward()
    assert tm.plan(model, to="twin:0").ok


class Frozen(NamedTuple):
    last: Tensor


@dataclasses.dataclass(frozen=True)
class FrozenToo:
    last: Tensor


@pytest.mark.parametrize(
    "hold",
    [
        lambda model, result: setattr(model, "kept", (numbers(1), result)),
        lambda model, result: setattr(model, "kept", [result]),
        lambda model, result: setattr(model, "kept", Frozen(result)),
        lambda model, result: setattr(model, "kept", FrozenToo(result)),
        lambda model, result: model.__dict__.update({"x-y": result}),
    ],
    ids=["tuple", "list", "namedtuple", "frozen dataclass", "odd name"],
)
def test_the_remedy_can_be_pasted_wherever_the_result_is(hold):
    model = Model()
    hold(model, model(numbers(4, 3)).sum())
    (refusal,) = [each for each in tm.plan(model, to="twin:0").refusals if each.code == "R032"]
    exec(refusal.remedy, {"model": model})
    assert tm.plan(model, to="twin:0").ok
