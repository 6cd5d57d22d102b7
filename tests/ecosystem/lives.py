"""Two states of one making live the same life, and one of them is moved in between: nobody can tell which."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from laws import assert_same, bits, trace
from routes import Route
from torch import Tensor, nn


def library(name: str) -> Any:
    """Import a library, or skip this file by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


@dataclass
class Life:
    """What is moved; the tensors in it, named by the test itself; and what it does for a while, and how that went.

    `tensors` must all go along; `stays` must not.
    """

    objects: tuple[Any, ...]
    tensors: Callable[[], Mapping[str, Tensor]]
    live: Callable[[], Any]
    stays: Callable[[], Mapping[str, Tensor]] = field(default=dict)


Look = Callable[[Life, torch.device], None]


def goes_on(make: Callable[[], Life], route: Route, look: Look = lambda life, device: None) -> None:
    """Moved away and back it is the same, bit for bit, and lives on like one that was not. `look` looks in between."""
    moved, unmoved = lived(make, route), lived(make, route)
    tensors, stays = dict(moved.tensors()), dict(moved.stays())
    before = trace({**tensors, **stays})
    for go, device in ((route.there, route.away), (route.back, route.home)):
        go(*moved.objects)
        assert {name: tensor.device for name, tensor in tensors.items() if tensor.device != device} == {}
        assert {tensor.device.type for tensor in stays.values()} <= {"cpu"}
        assert moved.tensors().keys() == tensors.keys()
        assert_same(before, trace({**moved.tensors(), **moved.stays()}))
        look(moved, device)
    assert lives(moved) == lives(unmoved)
    ours, theirs = moved.tensors(), unmoved.tensors()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if bits(ours[name]) != bits(theirs[name])] == []


def lived(make: Callable[[], Life], route: Route) -> Life:
    torch.manual_seed(0)
    life = make()
    route.start(*life.objects)
    lives(life)
    return life


def lives(life: Life) -> Any:
    torch.manual_seed(1)
    return told(life.live())


def told(value: Any) -> Any:
    """What came out, so that it can be compared bit for bit."""
    if isinstance(value, Tensor):
        return bits(value)
    if isinstance(value, Mapping):
        return {key: told(each) for key, each in value.items()}
    return [told(each) for each in value] if isinstance(value, (list, tuple)) else value


def registered(*modules: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under every name they have, and gradients."""
    found: dict[str, Tensor] = {}
    for index, module in enumerate(modules):
        for name, tensor in module.named_parameters(remove_duplicate=False):
            found[f"{index} {name}"] = tensor
            if tensor.grad is not None:
                found[f"{index} {name}.grad"] = tensor.grad
        found |= {f"{index} {name}": tensor for name, tensor in module.named_buffers(remove_duplicate=False)}
    return found


def state_of(optimizer: Any, *, steps: bool = False) -> dict[str, Tensor]:
    """What an optimizer keeps for its parameters; or, of that, the counters that it keeps on the CPU."""
    return {
        f"{index} {key}": value
        for index, state in enumerate(optimizer.state.values())
        for key, value in state.items()
        if isinstance(value, Tensor) and (key == "step") == steps
    }


def trained(
    model: nn.Module, optimizer: Any, loss_of: Callable[[torch.device], Tensor], scheduler: Any = None, *others: Any
) -> Life:
    """A model in training: three steps at a time."""

    def live() -> list[float]:
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(next(model.parameters()).device)
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
        return losses

    return Life(
        (model, optimizer, scheduler, *others),
        lambda: registered(model) | state_of(optimizer),
        live,
        lambda: state_of(optimizer, steps=True),
    )
