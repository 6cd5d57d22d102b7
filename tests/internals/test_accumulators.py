"""Hooks on gradient accumulators: whoever holds such a node hears of every gradient, before and after a move."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from laws import bits
from torch import Tensor, nn
from zoo import numbers

import torchmove as tm
from torchmove import chain
from torchmove.moving import apply as _apply


def accumulator(parameter: Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(parameter).node


class Listening:
    """Holds the accumulators of a model's parameters, with a hook of each kind on them."""

    def __init__(self, model: nn.Module) -> None:
        self.heard: list[str] = []
        self.nodes = [accumulator(parameter) for parameter in model.parameters()]
        self.handles = []
        for name, node in zip(dict(model.named_parameters()), self.nodes, strict=True):
            self.handles.append(node.register_prehook(self.hook(f"before {name}")))
            self.handles.append(node.register_hook(self.hook(f"after {name}")))

    def hook(self, name: str) -> Any:
        return lambda *_: self.heard.append(name)


EACH_ONCE = ["after bias", "after weight", "before bias", "before weight"]


def backward(model: nn.Module, device: torch.device, listening: Listening) -> list[str]:
    listening.heard.clear()
    model(torch.ones(2, 3, device=device)).sum().backward()
    return sorted(listening.heard)


def test_hooks_fire_once_after_every_move(route):
    model = nn.Linear(3, 3)
    route.start(model)
    listening = Listening(model)
    assert backward(model, route.home, listening) == EACH_ONCE
    for _ in range(3):
        route.there(model)
        assert backward(model, route.away, listening) == EACH_ONCE
        route.back(model)
        assert backward(model, route.home, listening) == EACH_ONCE


def test_what_hooks_return_takes_the_place_of_the_gradient(route):
    moved, unmoved = nn.Linear(3, 3), nn.Linear(3, 3)
    unmoved.load_state_dict(moved.state_dict())
    nodes = []
    for model in (moved, unmoved):
        node = accumulator(model.weight)
        node.register_prehook(lambda gradients: (gradients[0] * 3,))
        node.register_prehook(lambda gradients: (gradients[0] + 1,))
        node.register_prehook(lambda gradients: None)
        nodes.append(node)
    route.start(moved)
    route.there(moved)
    for model, device in ((moved, route.away), (unmoved, torch.device("cpu"))):
        model(torch.ones(2, 3, device=device)).sum().backward()
    assert bits(moved.weight.grad) == bits(unmoved.weight.grad)


def test_hooks_can_be_removed_and_added_after_a_move(route):
    model = nn.Linear(3, 3)
    route.start(model)
    listening = Listening(model)
    route.there(model)
    listening.handles[1].remove()
    listening.nodes[1].register_prehook(listening.hook("late"))
    assert backward(model, route.away, listening) == ["after bias", "before bias", "before weight", "late"]
    node = accumulator(model.weight)
    node.register_hook(listening.hook("new"))
    route.back(model)
    assert backward(model, route.home, listening) == ["after bias", "before bias", "before weight", "late", "new"]


def test_hooks_go_with_the_node_that_they_were_put_on(route):
    model = nn.Linear(3, 3)
    route.start(model)
    listening = Listening(model)
    route.there(model)
    listening.nodes.clear()
    assert backward(model, route.away, listening) == []


def test_a_failed_move_keeps_them(route, monkeypatch):
    model = nn.Linear(3, 3)
    route.start(model)
    listening = Listening(model)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(chain, "verify_move", lambda *_: 1 / 0)
            with pytest.raises(tm.MoveFailed):
                route.there(model)
        assert backward(model, route.home, listening) == EACH_ONCE
        route.there(model)
        assert backward(model, route.away, listening) == EACH_ONCE
        with monkeypatch.context() as patch:
            patch.setattr(_apply, "call_overrides", lambda *_: 1 / 0)
            with pytest.raises(tm.MoveFailed):
                route.back(model)
        assert backward(model, route.away, listening) == EACH_ONCE
        route.back(model)


def test_a_cycle_through_hooks_and_nodes_is_collected(route):
    """As in trainers that keep their accumulators in a list and themselves in the hooks."""
    model = nn.Linear(3, 3)
    route.start(model)
    listening = Listening(model)
    route.there(model)
    route.back(model)
    gone = weakref.ref(listening), weakref.ref(model.weight)
    del listening, model
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_old_memory_is_not_kept_by_an_accumulator(route):
    model = nn.Linear(300, 300)
    route.start(model)
    listening = Listening(model)
    assert route.there(model).held == ()
    assert len(listening.nodes) == 2


def test_a_model_whose_loss_is_kept_trains_on(route):
    model, numbers_in = nn.Linear(3, 3), numbers(2, 3)
    route.start(model)
    losses = []
    for device, go in ((route.home, route.there), (route.away, route.back), (route.home, None)):
        losses.append(model(numbers_in.to(device)).square().sum())
        losses[-1].backward()
        if go is not None:
            go(model)
    assert model.weight.grad is not None
