"""What a step is given: a state, which a move takes along, or data, which a loader delivers."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove._records import Child
from torchmove._stored import ATOMS
from torchmove.readers import reader_for

_CONTAINERS = (Mapping, list, tuple, set, frozenset, deque)


def is_data(given: Any) -> bool:
    """A tensor; a container or a dataclass that holds no module and no optimizer."""
    if isinstance(given, (nn.Module, Optimizer)):
        return False
    is_container = isinstance(given, _CONTAINERS) or dataclasses.is_dataclass(given)
    return isinstance(given, Tensor) or (is_container and next(trained_in(given), None) is None)


def trained_in(given: Any) -> Iterator[nn.Module | Optimizer]:
    """The modules and optimizers that somebody holds, each once; what is inside of those is theirs."""
    todo, seen = [given], {}
    while todo:
        each = todo.pop()
        if type(each) in ATOMS or isinstance(each, Tensor) or id(each) in seen:
            continue
        seen[id(each)] = each  # held: its id is its own
        if isinstance(each, (nn.Module, Optimizer)):
            yield each
        else:
            inside = reader_for(type(each))(each)
            todo += reversed([child.value for child in inside if isinstance(child, Child)])
