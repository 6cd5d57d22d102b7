"""What hangs on tensors, besides gradients, and on the classes of holders, where no move can reach it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from torchmove._records import Child, Fact, attribute
from torchmove._stored import ATOMS, stored_dict


def hung_on(tensor: Tensor, besides: tuple[Tensor, ...] = ()) -> Iterator[Child]:
    """What a tensor carries besides its gradient: attributes and hooks."""
    for name, value in tensor.__dict__.items():
        if type(value) not in ATOMS and not any(value is part for part in besides):
            yield attribute(name, value)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name)
        if hooks:
            yield attribute(name, hooks)


def on_class(holder: Any) -> Iterator[Fact]:
    """What its class holds. An attribute of the object's own hides that of its class."""
    own = stored_dict(holder) or {}
    for base in type(holder).__mro__:
        kinds = {id(kind): kind for kind in map(type, vars(base).values())}  # a few, of dozens of values
        if not any(issubclass(kind, (Tensor, functools._lru_cache_wrapper)) for kind in kinds.values()):
            continue
        for name, value in vars(base).items():
            if issubclass(type(value), Tensor) and name not in own:
                yield Fact("N021", f"{base.__name__}.{name} is a tensor on the class: it is out of reach and stays")
            elif type(value) is functools._lru_cache_wrapper and value.cache_info().currsize:
                yield Fact("N033", f"{base.__name__}.{name} is an lru_cache on the class: clear it, its entries stay")
