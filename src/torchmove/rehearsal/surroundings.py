"""What a step reaches besides what it is given: the globals that it, and the functions it calls, name in their code."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchmove.rehearsal.provenance import is_users

_HOLDERS = (nn.Module, Optimizer, LRScheduler, Tensor, dict, list, set, deque, functools._lru_cache_wrapper)


def globals_of(step: Callable[..., Any], modules: list[nn.Module]) -> dict[str, Any]:
    """By their names. A step that is written in a notebook has its model there."""
    found: dict[str, Any] = {}
    kinds = {type(each) for module in modules for each in module.modules()}
    todo = [function_of(step), *(getattr(kind, "forward", None) for kind in kinds)]
    seen: set[int] = set()
    while todo:
        function = todo.pop()
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        if not is_users(function.__code__.co_filename):
            continue
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType):
                todo.append(value)
            elif isinstance(value, _HOLDERS) or type(value).__module__ == function.__module__:
                found[name] = value
    return {name: value for name, value in found.items() if not isinstance(value, (type, types.ModuleType))}


def function_of(step: Any) -> Any:
    """The function behind a method, a partial or an object that can be called."""
    if isinstance(step, functools.partial):
        return function_of(step.func)
    if isinstance(step, types.MethodType):
        return step.__func__
    return step if isinstance(step, types.FunctionType) else vars(type(step)).get("__call__")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
