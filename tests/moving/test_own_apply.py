"""Modules that change what they hold in their own `_apply`, as `Module.to` lets them: the change is adopted."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from laws import assert_same, bits, trace
from torch import Tensor, nn
from zoo import numbers

import torchmove as tm
from torchmove import chain
from torchmove.moving import apply as _apply

pytestmark = pytest.mark.twin


class Head(nn.Module):
    anchors = torch.empty(0)  # on the class, until `_apply` of the model above sets one on the head
    strides = numbers(2)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3))


class Detector(nn.Module):
    """Sets attributes of its head, as YOLO does."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3, 3), Head())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        head = self.model[-1]
        head.anchors, head.strides = fn(head.anchors), fn(head.strides)
        return self


class Cached(nn.Module):
    """Drops what it has cached, as torchrl's losses do, and replaces a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3))
        self._cache = OrderedDict(b=self.weight.detach(), a=numbers(4))
        self.history = [numbers(2)]
        self.calls = 0

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._cache.clear()
        self.__dict__.pop("extra", None)
        self.history = [fn(each) for each in self.history] + [fn(torch.zeros(1))]
        self.calls += 1
        return self


def test_what_a_module_sets_is_adopted_on_the_target(route):
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    receipt = route.there(model, optimizer)
    head = model.model[-1]
    assert {"anchors", "strides"} <= vars(head).keys()
    assert {each.device for each in (head.anchors, head.strides, head.weight)} == {route.away}
    assert bits(head.strides) == bits(Head.strides)
    assert Head.strides.device.type == "cpu"
    assert [note.path for note in receipt.plan.notes if note.code == "N060"] == ["model"]
    assert receipt.verdict is not None
    assert receipt.verdict.ok
    assert tm.verify(model, optimizer, after=receipt).ok
    back = route.back(model, optimizer)
    assert head.strides.device == route.home
    assert [note for note in back.plan.notes if note.code == "N060"] == []


def test_what_a_module_drops_is_gone_and_no_finding(route):
    model = Cached()
    model.extra = {"key": numbers(5)}
    route.start(model)
    dropped = id(model.history)
    receipt = route.there(model)
    assert not model._cache
    assert not hasattr(model, "extra")
    assert id(model.history) != dropped
    assert {each.device for each in model.history} == {route.away}
    assert tm.verify(model, after=receipt).ok


@pytest.mark.parametrize("make", [Detector, Cached])
def test_a_failure_afterwards_undoes_what_a_module_changed(make, route, monkeypatch):
    model = make()
    route.start(model)
    if isinstance(model, Cached):
        model._cache = OrderedDict(b=model.weight.detach(), a=torch.ones(4, device=route.home))
        model.extra = {"key": torch.ones(5, device=route.home)}
    tensors = {str(slot.path): slot.tensor for slot in tm.survey(model).tensors}
    stored = {name: {**vars(module)} for name, module in model.named_modules()}
    cache = list(model._cache.items()) if isinstance(model, Cached) else []
    before = trace(tensors)

    def fail(*_: Any) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(chain, "verify_move", fail)
        with pytest.raises(tm.MoveFailed):
            route.there(model)
    assert_same(before, trace(tensors))
    assert {name: {**vars(module)} for name, module in model.named_modules()} == stored
    if isinstance(model, Cached):
        assert list(model._cache.items()) == cache
        assert model.calls == stored[""]["calls"]
    assert {str(slot.path) for slot in tm.survey(model).tensors} == tensors.keys()
    route.there(model)


class Stray(nn.Linear):
    """Sets a tensor that it does not hand to the function."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.stray = torch.zeros(2)
        return self


def test_what_a_module_sets_elsewhere_is_found_and_rolled_back():
    model = Stray(2, 2)
    with pytest.raises(tm.VerificationError, match=r"V401 model\.stray"):
        tm.move(model, to="twin:0")
    assert not hasattr(model, "stray")
    assert model.weight.device.type == "cpu"


def test_what_somebody_else_changes_meanwhile_is_still_a_finding(monkeypatch):
    model, other = Detector(), nn.Linear(2, 2)
    real = _apply.call_overrides

    def interfere(*args: Any) -> Any:
        adopted = real(*args)
        other.stranger = torch.zeros(2)
        return adopted

    monkeypatch.setattr(_apply, "call_overrides", interfere)
    with pytest.raises(tm.VerificationError, match=r"V302 other\.stranger"):
        tm.move(model, other, to="twin:0")


def test_a_module_of_which_nothing_moves_is_not_called():
    model, other = Cached(), nn.Linear(2, 2)
    tm.move(other, model, to="twin:0", keep=[model])
    assert model.calls == 0
    assert model._cache
    tm.move(model, to="cpu")
    assert model.calls == 0


def test_a_parked_module_adopts_on_the_way_there_and_back(twin):
    model = Detector()
    tm.move(model, to="twin:0")
    with tm.parked(model):
        assert model.model[-1].strides.device.type == "cpu"
    assert model.model[-1].strides.device.type == "twin"


class Doubled(nn.Linear):
    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.double: Tensor = fn(self.weight.detach() * 2)
        return self


def test_what_is_computed_from_moved_tensors_is_computed_on_the_target(route):
    model = Doubled(2, 3)
    route.there(model)
    assert model.double.device == route.away
    assert bits(model.double) == bits(model.weight * 2)


# ---------------------------------------------------------------- all that an `_apply` can reach


class Trained(nn.Module):
    """Holds its optimizer, an object with slots, and a tensor with a gradient."""

    __slots__ = ("slot",)

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.weight, self.frozen = nn.Parameter(numbers(3)), nn.Parameter(numbers(3))
        self.register_buffer("table", numbers(3))
        self.optimizer = torch.optim.Adam([self.weight], lr=0.1)
        self.slotted, self.slot = Slotted(numbers(2)), numbers(4)
        self.weight.grad = numbers(3)
        self.optimizer.step()
        self.change = change

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.change(self, fn)
        return self


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner


class Fails(nn.Module):
    def _apply(self, *_: Any) -> Any:
        raise RuntimeError("broken")


CHANGES = {
    "clears the state": lambda model, fn: model.optimizer.state.clear(),
    "empties a parameter's state": lambda model, fn: model.optimizer.state[model.weight].clear(),
    "sets the learning rate": lambda model, fn: model.optimizer.param_groups[0].update(lr=7.0),
    "adds a group": lambda model, fn: model.optimizer.add_param_group({"params": [model.frozen]}),
    "extends a group": lambda model, fn: model.optimizer.param_groups[0]["params"].append(model.frozen),
    "sets a slot of an object": lambda model, fn: setattr(model.slotted, "inner", fn(torch.zeros(2))),
    "deletes a slot of an object": lambda model, fn: delattr(model.slotted, "inner"),
    "sets a slot of its own": lambda model, fn: setattr(model, "slot", fn(torch.zeros(4))),
    "drops the gradient": lambda model, fn: model.zero_grad(),
    "makes a gradient": lambda model, fn: setattr(model.frozen, "grad", fn(torch.zeros(3))),
    "freezes": lambda model, fn: model.requires_grad_(False),
    "marks a tensor": lambda model, fn: setattr(model.weight, "mark", 1),
}


def everything(model: Trained) -> Any:
    state = model.optimizer.state
    return (
        [(str(each.path), id(each.tensor), bits(each.tensor), each.device) for each in tm.survey(model).tensors],
        [each.requires_grad for each in model.parameters()],
        [(id(key), {name: id(value) for name, value in kept.items()}) for key, kept in state.items()],
        [{**group, "params": [*map(id, group["params"])]} for group in model.optimizer.param_groups],
        [{**vars(each)} for each in model.parameters()],
    )


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_an_apply_changed_is_undone_when_the_move_fails(change, route):
    model = nn.Sequential(Trained(lambda *_: None), Fails())
    route.start(model[0])
    model[0].change = CHANGES[change]
    before = everything(model[0])
    with pytest.raises(tm.MoveFailed, match="broken"):
        route.there(model)
    assert everything(model[0]) == before


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.weight = nn.Parameter(fn(self.weight.detach().clone()))
        return self


def test_a_parameter_replaced_under_its_optimizer_is_a_finding():
    model = nn.Sequential(Replacing(), Replacing())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weights = [*model.parameters()]
    with pytest.raises(tm.VerificationError, match=r"V303 model\[0\]\.weight and 1 more: .* optimizer still trains"):
        tm.move(model, optimizer, to="twin:0")
    assert [*map(id, model.parameters())] == [*map(id, weights)]
    tm.move(model, to="twin:0")
    assert [*map(id, model.parameters())] != [*map(id, weights)]


class Setting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.table = nn.Parameter(numbers(3)), numbers(1)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.table = fn(torch.ones(2))
        return self


@pytest.mark.parametrize("by", ["path", "object"])
def test_what_is_kept_is_not_the_modules_to_replace(by):
    model = Setting()
    table = model.table
    receipt = tm.move(model, to="twin:0", keep=["model.table" if by == "path" else table])
    assert model.table is table
    assert table.device.type == "cpu"
    assert model.weight.device.type == "twin"
    assert [note.code for note in receipt.plan.notes] == []
