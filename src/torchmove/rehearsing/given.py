"""What is registered with a module, whatever its class makes of `parameters()`, `buffers()` and `modules()`."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchmove.internals.stored import ATOMS
from torchmove.surveying.children import Child
from torchmove.surveying.readers import reader_for


def modules_in(module: nn.Module) -> Iterator[nn.Module]:
    return (each for _, each in nn.Module.named_modules(module))


def parameters_in(module: nn.Module, *, recurse: bool = True) -> Iterator[nn.Parameter]:
    return (each for _, each in nn.Module.named_parameters(module, recurse=recurse))


def tensors_in(module: nn.Module) -> Iterator[Tensor]:
    """Its parameters and buffers."""
    yield from parameters_in(module)
    yield from (each for _, each in nn.Module.named_buffers(module))


_CONTAINERS = (Mapping, list, tuple, set, frozenset, deque)
_STATES = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler, nn.Parameter)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, type)


class Given:
    """Which of the objects are states, by their names.

    An object is a state if it is a function, if it holds a module, an optimizer, a parameter, a gradient scaler or an
    average of weights (tensors under the names of a module's parameters), or if the caller says so. Else it is data.

    Attributes:
        states: the objects that are moved, by name.
        assumed: what was assumed of objects that are neither tensors nor containers of them.
    """

    def __init__(self, named: Mapping[str, Any], said: tuple[Any, ...]) -> None:
        names: set[Any] = {name for each in named.values() for name in _parameter_names(each)}
        names |= {shapes for each in named.values() for shapes in _parameter_shapes(each)}
        self.states: dict[str, Any] = {}
        self.assumed: list[str] = []
        for name, each in named.items():
            if any(each is one for one in said) or not _is_data(each, names):
                self.states[name] = each
                if isinstance(each, list) and _is_average(each, names):
                    self.assumed.append(f"{name}, a list of tensors of the parameters' shapes, is moved with the model")
            elif not isinstance(each, (Tensor, *_CONTAINERS)) and type(each) not in ATOMS and _has_tensors(each):
                kind = type(each).__name__
                self.assumed.append(
                    f"{name} (class {kind}, no parameters) is treated as data: on the CPU until the step moves it; "
                    f"state=[{name}] treats it as state"
                )


def _is_data(given: Any, names: set[Any]) -> bool:
    return not isinstance(given, _FUNCTIONS) and not any(
        isinstance(each, _STATES) or _is_average(each, names) for each in _inside(given, (*_STATES, Tensor))
    )


def _is_average(each: Any, names: set[Any]) -> bool:
    """A dict of tensors under the names of parameters, or a list of tensors of their shapes."""
    if isinstance(each, list) and each and all(isinstance(one, Tensor) for one in each):
        return tuple(tuple(one.shape) for one in each) in names
    if not isinstance(each, dict) or not each or not names:
        return False
    return all(isinstance(key, str) and key in names and isinstance(each[key], Tensor) for key in each)


def _has_tensors(given: Any) -> bool:
    return any(isinstance(each, Tensor) for each in _inside(given, (Tensor, *_STATES)))


def _parameter_names(given: Any) -> Iterator[str]:
    for each in trained_in(given):
        if isinstance(each, nn.Module):
            yield from (name for name, _ in nn.Module.named_parameters(each))


def _parameter_shapes(given: Any) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Of each module with several parameters: of all of them, in order."""
    for each in trained_in(given):
        if isinstance(each, nn.Module) and not any(map(is_lazy, parameters_in(each))):
            shapes = tuple(tuple(parameter.shape) for parameter in parameters_in(each))
            yield from [shapes] if len(shapes) > 1 else []


def trained_in(given: Any) -> Iterator[nn.Module | Optimizer]:
    """The modules and optimizers that somebody holds, each once; what is inside of those is theirs."""
    return (each for each in _inside(given, (nn.Module, Optimizer)) if isinstance(each, (nn.Module, Optimizer)))


def _inside(given: Any, closed: tuple[type, ...]) -> Iterator[Any]:
    """An object and all that it holds, each once; what is inside of objects of the `closed` kinds is theirs."""
    todo, seen = [given], {}
    while todo:
        each = todo.pop()
        if type(each) in ATOMS or id(each) in seen:
            continue
        seen[id(each)] = each  # held: its id is its own
        yield each
        if not isinstance(each, closed) and not isinstance(each, Tensor):
            inside = reader_for(type(each))(each)
            todo += reversed([child.value for child in inside if isinstance(child, Child)])


def held(objects: Any, kind: type, closed: tuple[type, ...] = (nn.Module, Optimizer)) -> list[Any]:
    """All objects of a kind that these hold, each once; what is inside of objects of the `closed` kinds is theirs."""
    return [each for each in _inside([*objects], closed) if isinstance(each, kind)]
