"""Find which objects are state, and which variables, classes and functions a step captures.

`parted` separates names of one tensor that `to` would split: `on_device = x.to(device)` is x itself without the device.
With the device it is a copy. So the moved name keeps the tensor, and the other name gets a copy on the CPU.
"""

from __future__ import annotations

import argparse
import dis
import functools
import linecache
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from torchmove.internals.stored import ATOMS, LruCache
from torchmove.rehearsing.provenance import is_installed, is_program, is_users
from torchmove.rehearsing.tensors import leaves, mapped
from torchmove.surveying.paths import Child
from torchmove.surveying.readers import reader_for


# By nn.Module's own methods: a class may override `parameters()`, `buffers()` and `modules()`.
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
    """The given objects, divided into state and data.

    An object is state if it is a function, if it holds a module, an optimizer, a parameter, a gradient scaler or an
    average of weights (tensors under the names of a module's parameters), or if `said` contains it. Else it is data.

    Attributes:
        states: the objects that are moved, by name.
        assumed: the assumptions about objects that are neither tensors nor containers of tensors.
    """

    def __init__(self, named: Mapping[str, Any], said: tuple[Any, ...]) -> None:
        unknown = [each for each in said if not any(each is one for one in named.values())]
        if unknown:
            what = repr(unknown[0]) if isinstance(unknown[0], str) else f"a {type(unknown[0]).__name__}"
            first = next(iter(named), "model")
            raise ValueError(f"state= contains {what}, which was not passed to the step. Fix: state=[{first}]")
        names: set[Any] = {name for each in named.values() for name in _parameter_names(each)}
        names |= {shapes for each in named.values() for shapes in _parameter_shapes(each)}
        self.states: dict[str, Any] = {}
        self.assumed: list[str] = []
        for name, each in named.items():
            if any(each is one for one in said) or not _is_data(each, names):
                self.states[name] = each
                if isinstance(each, list) and _is_average(each, names):
                    self.assumed.append(
                        f"{name}, a list of tensors with the shapes of the parameters, is treated as state: "
                        "it moves with the model"
                    )
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
    """Whether it is a dict of tensors by parameter names, or a list of tensors of the parameters' shapes."""
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
    """For each module with several parameters, their shapes in order."""
    for each in trained_in(given):
        if isinstance(each, nn.Module) and not any(map(is_lazy, parameters_in(each))):
            shapes = tuple(tuple(parameter.shape) for parameter in parameters_in(each))
            yield from [shapes] if len(shapes) > 1 else []


def trained_in(given: Any) -> Iterator[nn.Module | Optimizer]:
    """The modules and optimizers that an object holds, each once; those inside of these are left out."""
    return (each for each in _inside(given, (nn.Module, Optimizer)) if isinstance(each, (nn.Module, Optimizer)))


def _inside(given: Any, closed: tuple[type, ...]) -> Iterator[Any]:
    """An object and all that it holds, each once; objects of the `closed` kinds are not entered."""
    todo, seen = [given], {}
    while todo:
        each = todo.pop()
        if type(each) in ATOMS or id(each) in seen:
            continue
        seen[id(each)] = each  # a reference, so that the id is not reused
        yield each
        if not isinstance(each, closed) and not isinstance(each, Tensor):
            inside = reader_for(type(each))(each)
            todo += reversed([child.value for child in inside if isinstance(child, Child)])


def held(objects: Any, kind: type, closed: tuple[type, ...] = (nn.Module, Optimizer)) -> list[Any]:
    """All objects of a kind that these hold, each once; objects of the `closed` kinds are not entered."""
    return [each for each in _inside([*objects], closed) if isinstance(each, kind)]


_HOLDERS = (
    *(nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler, Tensor, torch.Generator, random.Random),
    *(torch.distributions.Distribution, torch.distributions.Transform),
    *(dict, list, set, tuple, deque, LruCache, types.SimpleNamespace, argparse.Namespace),
)

_MOST_LOOKED_AT, _DEEP = 200, 3
_MANY = 64  # a list of at least this many items is not searched for datasets


class Captured:
    """What the code of a step captures: variables, closures, classes and functions.

    Reads only the names that the code uses. Enters the user's modules, not those of installed libraries.

    Attributes:
        held: objects that may hold tensors or devices, by name.
        names: variables that the code may rebind, and their namespaces.
        classes: the user's classes, whose attributes the code may rebind.
        functions: the user's functions.
        sources: loaders, datasets and samplers, and those within them.
    """

    def __init__(self, step: Callable[..., Any], objects: Iterable[Any]) -> None:
        linecache.checkcache()  # a file may have been edited and reloaded
        self.held: dict[str, Any] = {}
        self.names: dict[tuple[int, str], dict[str, Any]] = {}
        self.classes: list[type] = []
        self.functions: list[types.FunctionType] = []
        self.sources: list[Any] = []
        self._seen: set[int] = set()
        self._own: set[str] = set()  # names of the user's modules; some are not in sys.modules
        self._todo: list[Any] = [function_of(step)]
        for each in objects:
            self._meet_inside(each)
            self._meet_sources(each)
            self._meet_modules(each)
        while self._todo:
            self._read(self._todo.pop())

    def _read(self, function: Any) -> None:
        if not isinstance(function, types.FunctionType) or not self._is_new(function):
            return
        self._todo.append(getattr(function, "__wrapped__", None))  # inside a decorator such as torch.no_grad
        code, around = function.__code__, function.__globals__
        if not is_users(code.co_filename):
            return
        names = {*_names(code)}
        if is_installed(code.co_filename):
            self._look_around(around, function.__module__, {*variables_of(code)})
            return
        self._own.add(function.__module__)
        if linecache.getlines(code.co_filename) and not code.co_filename.startswith("<attrs"):
            self.functions.append(function)  # without generated functions, as of dataclasses
        self._look_into(around, "", {*variables_of(code)}, names, {id(around)})
        for name, value in closure_of(function).items():  # held objects in it are found through the function
            self._todo += [value, *_functions_in(value)]
            if isinstance(value, (type, types.ModuleType)):
                self._meet(name, value, names, {id(around)})
            elif self._is_own(type(value).__module__) or _is_users_class(type(value)):
                self._meet_class(type(value))
            self._meet_modules(value)

    def _look_around(self, space: dict[str, Any], module: str, names: set[str]) -> None:
        """Collect the named variables of a module of an installed library."""
        for name in names & space.keys():
            value = space[name]
            self._todo.append(value)
            if isinstance(value, _HOLDERS) or type(value).__module__ == module:
                self._hold(name, value)

    def _look_into(
        self, space: dict[str, Any], before: str, variables: set[str], names: set[str], entered: set[int]
    ) -> None:
        """Collect variables of a user's module. `names`: all that the code uses; `entered`: modules already read."""
        for name in variables:
            self.names[id(space), name] = space
            if name in space:
                self._meet(before + name, space[name], names, entered)

    def _meet(self, name: str, value: Any, names: set[str], entered: set[int]) -> None:
        if isinstance(value, types.ModuleType):
            if self._is_own(value.__name__) and id(vars(value)) not in entered:
                entered.add(id(vars(value)))
                self._look_into(vars(value), f"{name}.", names, names, entered)
        elif isinstance(value, type):
            self._meet_class(value)
        elif isinstance(value, types.FunctionType):
            self._todo.append(value)
            if value.__closure__ and not is_installed(value.__code__.co_filename):
                self._hold(name, value)
        else:
            self._todo += _functions_in(value)
            self._meet_sources(value)
            is_own = self._is_own(type(value).__module__) or _is_users_class(type(value))
            is_partial = isinstance(value, functools.partial) and bool(value.args or value.keywords)
            if isinstance(value, _HOLDERS) or is_own or is_partial or is_array(value) or is_of_library(value):
                self._hold(name, value)
                self._meet_inside(value)
                self._meet_modules(value)

    def _meet_modules(self, value: Any) -> None:
        """Collect the code of a module and its submodules, which calling it runs."""
        for module in modules_in(value) if isinstance(value, nn.Module) else ():
            self._meet_class(type(module))
            self._todo.append(getattr(type(module), "forward", None))
            self._todo += _hooks_of(module)

    def _meet_sources(self, value: Any) -> None:
        """Collect the code that a loader runs: its dataset, its sampler and the functions that they hold."""
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._todo.append(function_of(value))
        elif isinstance(value, (DataLoader, Dataset, Sampler)) and self._is_new(value):
            self.sources.append(value)
            self._meet_class(type(value))
            for each in list(vars(value).values()):
                for one in each if type(each) in (list, tuple) and len(each) < _MANY else [each]:
                    self._meet_sources(one)

    def _meet_inside(self, value: Any) -> None:
        """Collect its class, the classes of the objects that it holds, and its loaders."""
        inside = held([value], object)
        for kind in dict.fromkeys(map(type, inside)):
            self._meet_class(kind)
        for each in inside:
            if isinstance(each, (DataLoader, Dataset, Sampler)):
                self._meet_sources(each)
            for one in getattr(each, "__dict__", {}).values():
                if isinstance(one, type):  # settings in the body of a class: `self.cfg = CFG`
                    self._meet_class(one)

    def _meet_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if self._is_own(base.__module__) and self._is_new(base):
                self.classes.append(base)
                for name, value in vars(base).items():
                    self._todo += [value, *_functions_in(value)]
                    is_random = type(value).__module__.startswith("numpy.random")
                    if (isinstance(value, _HOLDERS) or is_random) and not name.startswith("__"):
                        self._hold(f"{base.__name__}.{name}", value)

    def _hold(self, name: str, value: Any) -> None:
        if type(value) not in ATOMS and not isinstance(value, (type, types.ModuleType)):
            self.held[name] = value

    def _is_own(self, module: str) -> bool:
        file = _file_of(module)
        return module in self._own or (file is not None and is_program(file))

    def _is_new(self, each: Any) -> bool:
        new = id(each) not in self._seen
        self._seen.add(id(each))
        return new


def is_array(each: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(each, numpy.ndarray)


def is_of_library(value: Any) -> bool:
    """Whether it is a library's object, such as a trainer, that holds a module, an optimizer or a device."""
    todo, seen = [(value, 0)], set[int]()
    while todo and len(seen) < _MOST_LOOKED_AT:
        each, deep = todo.pop()
        file = _file_of(type(each).__module__)
        is_function = isinstance(each, types.FunctionType)
        if id(each) in seen or not (is_function or (file is not None and file and is_installed(file))):
            continue
        seen.add(id(each))
        cells = closure_of(each).values() if is_function else []
        inside = [*getattr(each, "__dict__", {}).values(), *cells]
        if any(isinstance(one, (nn.Module, Optimizer, torch.device)) for one in inside):
            return True
        todo += [(one, deep + 1) for one in inside if deep < _DEEP]
    return False


def _hooks_of(module: nn.Module) -> list[Any]:
    """The functions that run with a module, and with its parameters in a backward pass."""
    dicts = [value for name, value in vars(module).items() if name.endswith("_hooks")]
    for each in parameters_in(module, recurse=False):
        dicts += [each._backward_hooks, each._post_accumulate_grad_hooks]
    return [function_of(hook) for hooks in dicts if isinstance(hooks, dict) for hook in hooks.values()]


def function_of(step: Any) -> Any:
    """The function of a method, a partial or an object that can be called."""
    if isinstance(step, functools.partial):
        return function_of(step.func)
    if isinstance(step, types.MethodType):
        return step.__func__
    return step if isinstance(step, types.FunctionType) else vars(type(step)).get("__call__")


def _functions_in(value: Any) -> list[Any]:
    """The functions inside a property, a cache, a static or class method, a partial or a bound method."""
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, (LruCache, staticmethod, classmethod)):
        return [value.__wrapped__, getattr(value.__wrapped__, "__wrapped__", None)]
    return [function_of(value)] if isinstance(value, (functools.partial, types.MethodType)) else []


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of global variables and attributes that code uses."""
    for each in _codes(code):
        yield from each.co_names


def variables_of(code: types.CodeType) -> Iterator[str]:
    """The names of global variables that code uses, without attributes, which may share a variable's name.

    `dis.get_instructions` gives the same and takes a hundred times as long.
    """
    for each in _codes(code):
        wide = 0
        for instruction, number in zip(each.co_code[::2], each.co_code[1::2], strict=True):
            if instruction == dis.EXTENDED_ARG:
                wide = (wide | number) << 8
                continue
            shift = _SHIFTS.get(instruction)
            if shift is not None:
                yield each.co_names[(wide | number) >> shift]
            wide = 0


# The instructions on variables of a module or a class body, and how many bits their name index is shifted.
_SHIFTS = {
    number: 1 if name == "LOAD_GLOBAL" and sys.version_info >= (3, 11) else 0
    for name, number in dis.opmap.items()
    if name in {f"{verb}_{scope}" for verb in ("LOAD", "STORE", "DELETE") for scope in ("GLOBAL", "NAME")}
}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """The variables in a function's closure; None for one that is not filled yet."""
    return dict(zip(function.__code__.co_freevars, map(_contents, function.__closure__ or ()), strict=True))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _file_of(module: str) -> str | None:
    """The file of a module; "" for a notebook or an interactive session, which count as the user's."""
    return getattr(sys.modules.get(module), "__file__", "" if module == "__main__" else None)


def _is_users_class(kind: type) -> bool:
    file = _file_of(kind.__module__)
    return file is not None and is_users(file)


# ---------------------------------------------------------------- names of one tensor


class Name(NamedTuple):
    """A variable or an attribute."""

    text: str  # as written in the source
    owner: str  # the class whose methods use this text
    value: Any
    was_sent: Callable[[], bool]
    is_made: Callable[[], bool]  # whether a statement creates it on the CPU
    bind: Callable[[Any], object] | None  # None if the step does not read it


def parted(spaces: Iterable[list[Name]], there: set[int]) -> Iterator[tuple[Name, Any]]:
    """Yield the names that were not moved but share a tensor with a moved name, each with a copy of its value.

    `spaces`: the names of each module, function or object. `there`: the ids of the tensors on the device. If the moved
    name is in another space, only values that a statement created on the CPU are yielded.
    """
    sent: set[int] = set()
    unsent: list[tuple[Name, set[int], set[int]]] = []
    for names in spaces:
        shared = [(each, its) for each in names if (its := {*map(id, _plain_tensors(each.value))} & there)]
        was_sent = [each.was_sent() for each, _ in shared]
        beside = {one for (_, its), yes in zip(shared, was_sent, strict=True) if yes for one in its}
        sent |= beside
        unsent += [(each, its, beside) for (each, its), yes in zip(shared, was_sent, strict=True) if not yes]
    for name, its, beside in unsent:
        if name.bind is not None and (its & beside or (its & sent and name.is_made())):
            yield name, mapped(_copied, name.value)


def _plain_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that `to` copies; parameters are excluded, as they move with their module."""
    if type(value) in (Tensor, list, tuple, dict):
        yield from (each for each in leaves(value) if type(each) is Tensor)


def _copied(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if type(value) is Tensor else value
