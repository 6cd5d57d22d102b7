"""Optimizers: groups and state, each tensor with its place in the optimizer, so that the rules can tell what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.optim import Optimizer

from torchmove._paths import ITEM, KEYED
from torchmove._records import Child, Level, Owner, Reader, attribute, item, make_child, make_owner
from torchmove._stored import ATOMS, attributes


def read(optimizer: Optimizer) -> Iterator[Child]:
    stored = object.__getattribute__(optimizer, "__dict__")
    groups = stored.get("param_groups", [])
    yield attribute("param_groups", Level(_groups(optimizer, groups)))
    yield attribute("state", Level(_states(optimizer, stored.get("state", {}), groups)))
    for name, value in attributes(optimizer):
        if name not in ("param_groups", "state") and type(value) not in ATOMS:
            yield attribute(name, value)


def _groups(optimizer: Optimizer, groups: Any) -> Iterator[Child]:
    for index, group in enumerate(groups):
        yield item(index, Level(_group(optimizer, group)))


def _group(optimizer: Optimizer, group: Mapping[str, Any]) -> Iterator[Child]:
    for key, value in group.items():
        if key == "params":
            yield item(key, value, "parameter")
        elif type(value) not in ATOMS:
            yield item(key, value, "state", Owner(type(optimizer), str(key), group, None))


def _states(optimizer: Optimizer, states: Mapping[Any, Any], groups: Any) -> Iterator[Child]:
    group_of = {id(parameter): group for group in groups for parameter in group["params"]}
    for parameter, state in states.items():
        group = group_of.get(id(parameter), {})
        if isinstance(state, dict):
            yield Child(KEYED, parameter, Level(_state(optimizer, parameter, state, group)))
        else:
            yield Child(KEYED, parameter, state, "state", Owner(type(optimizer), "", group, parameter))


def _state(optimizer: Optimizer, parameter: Any, state: Any, group: Mapping[str, Any]) -> Iterator[Child]:
    kind = type(optimizer)
    for key, value in state.items():
        if type(value) not in ATOMS:
            yield make_child((ITEM, key, value, "state", make_owner((kind, key, group, parameter))))


TABLE: dict[type | str, Reader] = {Optimizer: read}
