"""Optimizers: groups and state. Each tensor records what it belongs to in the optimizer, so that rules apply to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.optim import Optimizer

from torchmove.internals.stored import ATOMS, attributes, stored_dict
from torchmove.surveying.paths import ATTRIBUTE, ITEM, Child, Children, Inner, Owner, ParameterStates, Reader


def read(optimizer: Optimizer) -> Iterator[Child]:
    stored = stored_dict(optimizer) or {}
    groups = stored.get("param_groups", [])
    yield Child(ATTRIBUTE, "param_groups", Inner(_groups(optimizer, groups), groups))
    states = stored.get("state", {})
    yield Child(ATTRIBUTE, "state", Inner(_states(optimizer, states, groups), states))
    for name, value in attributes(optimizer):
        if name not in ("param_groups", "state") and type(value) not in ATOMS:
            yield Child(ATTRIBUTE, name, value, None, Owner(optimizer, None, None))


def _groups(optimizer: Optimizer, groups: Any) -> Iterator[Child]:
    for index, group in enumerate(groups):
        yield Child(ITEM, index, Inner(_group(optimizer, group), group))


def _group(optimizer: Optimizer, group: Mapping[str, Any]) -> Iterator[Child | Children]:
    for key, value in group.items():
        if key == "params":
            yield Children(ITEM, dict(enumerate(value)), "parameter", at=(ITEM, "params"))
        elif type(value) not in ATOMS:
            yield Child(ITEM, key, value, "state", Owner(optimizer, group, None))


def _states(optimizer: Optimizer, states: Mapping[Any, Any], groups: Any) -> Iterator[ParameterStates]:
    yield ParameterStates(
        optimizer, states, {id(parameter): group for group in groups for parameter in group["params"]}
    )


TABLE: dict[type | str, Reader] = {Optimizer: read}
