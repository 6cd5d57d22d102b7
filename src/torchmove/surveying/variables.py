"""Search the variables of the running program: which variable, attribute or item leads to an object.

The search goes forward, nearest first, from the variables of the caller, then of the functions that called it, of the
program's own modules and of other threads. It is bounded by a number of objects, so its cost does not depend on the
size of the process. It runs no user code, and keeps nothing alive once its result is dropped.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove.internals.frames import (
    callers_frame,
    frames_of_other_threads,
    is_own,
    stack_of,
    variables_of,
)
from torchmove.internals.stored import ATOMS, attributes, stored_dict
from torchmove.surveying.paths import ATTRIBUTE, ITEM, Child, Path, Reader, make_path, root_path
from torchmove.surveying.readers import containers, functions, outside, reader_for

_MOST_OBJECTS = 10_000  # of a search
_MOST_MEMBERS = 256  # of each of them
_MOST_FRAMES = 64  # of each stack


SHELL = "the shell"  # where `_` is the result of the last line


class Variable(NamedTuple):
    """An object, and the path that leads to it in some scope.

    Attributes:
        where: the scope: "" for that of the caller and for modules, else such as "train()".
        holder: the object that the last step of the path starts from; None for a variable.
    """

    value: Any
    path: Path
    where: str
    holder: Any

    def __str__(self) -> str:
        return f"{self.path} in {self.where}" if self.where else str(self.path)


class _Scope(NamedTuple):
    variables: Mapping[str, Any]
    where: str = ""


def find_variables(
    wanted: Callable[[type], bool], is_wanted: Callable[[Any], bool], besides: Container[int] = ()
) -> Iterator[Variable]:
    """The wanted objects of wanted types, nearest first; one with several names comes several times.

    `besides`: the ids of objects not to look into.
    """
    caller = callers_frame()
    globals_seen = None if caller is None else caller.f_globals  # found as variables already
    seen: dict[int, Any] = {id(globals_seen): globals_seen}  # holding an object keeps its id valid
    readers, kinds = _Readers(), _Kinds(wanted)
    left = _MOST_OBJECTS
    for scopes, share in _scopes(caller):
        budget = left // share
        todo: deque[tuple[Any, Path, str]] = deque()
        for variables, where in scopes:
            for name in sorted(variables, key=_is_private):
                value = variables[name]
                if _may_be_searched(value):
                    path = root_path(name)
                    todo.append((value, path, where))
                    if kinds[type(value)] and is_wanted(value):
                        yield Variable(value, path, where, None)
        while todo:
            holder, path, where = todo.popleft()
            if id(holder) in seen or id(holder) in besides:
                continue
            seen[id(holder)] = holder
            members = _some_members(holder, readers)
            left -= 1 + len(members)
            budget -= 1 + len(members)
            if budget < 0:
                break
            for how, what, value in members:
                step = make_path((path, how, what))
                todo.append((value, step, where))
                if kinds[type(value)] and is_wanted(value):
                    yield Variable(value, step, where, holder)


class _Kinds(dict[type, bool]):
    """Which types are wanted, as far as a search has met them."""

    def __init__(self, wanted: Callable[[type], bool]) -> None:
        super().__init__()
        self._wanted = wanted

    def __missing__(self, kind: type) -> bool:
        self[kind] = is_so = self._wanted(kind)
        return is_so


def _may_be_searched(value: Any) -> bool:
    try:
        return type(value) not in ATOMS
    except Exception:  # a class whose metaclass allows no hash
        return False


def _is_private(name: Any) -> bool:
    return str(name).startswith("_")


# ---------------------------------------------------------------- where a search starts


def _scopes(first: types.FrameType | None) -> Iterator[tuple[list[_Scope], int]]:
    """The scopes of the caller, those of the program's other code, and those of libraries that called it; for each, the
    part of what is left of the search that may be spent on it: one in so many."""
    stack = [each for each in islice(stack_of(first), _MOST_FRAMES) if not is_own(each)]
    yield [scope for each in stack[:1] for scope in _scopes_of(each, is_first=True)], 2
    stack += [each for top in frames_of_other_threads() for each in islice(stack_of(top), _MOST_FRAMES)]
    near = [each for each in stack[1:] if _is_programs(each.f_code.co_filename)]
    scopes = [scope for each in near for scope in _scopes_of(each, is_first=False)]
    if "_" in vars(builtins):
        scopes.append(_Scope({"_": vars(builtins)["_"]}, SHELL))
    scopes.append(_Scope({name: each for name, each in _programs_modules() if not _is_of(first, each)}))
    yield scopes, 2
    known = {*map(id, near)}
    yield [_Scope(variables_of(each), _place(each)) for each in stack[1:] if id(each) not in known], 1


def _scopes_of(frame: types.FrameType, *, is_first: bool) -> Iterator[_Scope]:
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED or frame.f_locals is not frame.f_globals:
        yield _Scope(variables_of(frame), "" if is_first else _place(frame))
    # The globals of other modules are found in the module, by a path that names it.
    if is_first or not _is_of(frame, sys.modules.get(str(frame.f_globals.get("__name__")))):
        yield _Scope(_without_dunders(frame.f_globals), "" if is_first else _place(frame))


def _place(frame: types.FrameType) -> str:
    name = frame.f_code.co_name
    return "the main program" if name == "<module>" else f"{name}()"


def _without_dunders(names: Mapping[str, Any]) -> dict[str, Any]:
    """The variables without `__name__` and the like, but with the `_` and `__` of notebooks."""
    own = {name: value for name, value in names.items() if type(name) is str}
    return {name: value for name, value in own.items() if not name.startswith("__") or not name.strip("_")}


def _is_of(frame: types.FrameType | None, module: Any) -> bool:
    """Whether the globals of a frame are those of a module."""
    return frame is not None and _names_in_module(module) is frame.f_globals


def _programs_modules() -> Iterator[tuple[str, Any]]:
    """The modules of the program itself. A package is judged first: most modules are in packages of libraries."""
    judged = dict.fromkeys((*sys.stdlib_module_names - {"__main__"}, _PACKAGE), False)
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if package not in judged:
            names = _names_in_module(sys.modules.get(package))
            judged[package] = names.get("__file__") is None or _is_programs_module(names)
        if judged[package] and _is_programs_module(_names_in_module(sys.modules.get(name))):
            yield name, sys.modules.get(name)


def _names_in_module(module: Any) -> dict[str, Any]:
    return stored_dict(module) or {} if issubclass(type(module), types.ModuleType) else {}


def _is_programs_module(names: Mapping[str, Any]) -> bool:
    """Whether these are the globals of a module of the program itself."""
    name, file = names.get("__name__"), names.get("__file__")
    if type(name) is not str or name.partition(".")[0] == _PACKAGE:
        return False
    return name == "__main__" or (type(file) is str and _is_programs(file))


def _is_programs(file: str) -> bool:
    """Whether this is a file of the program itself: neither of Python nor of an installed library."""
    return not file.startswith((_LIBRARY, "<frozen")) and "-packages" not in file


_PACKAGE = __name__.partition(".")[0]
_LIBRARY = os.path.dirname(os.__file__) + os.sep


# ---------------------------------------------------------------- what is in an object

_Step = tuple[str, Any, Any]  # how, what, and the value
_Reader = Callable[[Any], Iterable[_Step]]


class _Readers(dict[type, _Reader]):
    """What reads the members of objects of a type, as far as a search has met it."""

    def __missing__(self, kind: type) -> _Reader:
        self[kind] = reader = _reader_of(kind)
        return reader


def _some_members(holder: Any, readers: _Readers) -> list[_Step]:
    try:
        members = islice(readers[type(holder)](holder), _MOST_MEMBERS)
        return [step for step in members if type(step[2]) not in ATOMS]
    except Exception:  # an object that is not what its class says, or that another thread changes
        return []


def _reader_of(kind: type) -> _Reader:
    for base, reader in _BY_BASE.items():
        if issubclass(kind, base):
            return reader
    known = reader_for(kind)
    return partial(_by_reader, known) if known in _PLAIN else _none if known in _OUTSIDE else _attributes


def _none(_: Any) -> Iterable[_Step]:
    return ()


def _by_reader(reader: Reader, holder: Any) -> Iterator[_Step]:
    for child in reader(holder):
        if type(child) is Child:
            how, what, value, *_ = child
            if how is not ITEM or type(what) in ATOMS:  # printing a key of another type would run its code
                yield how, what, value


def _attributes(holder: Any) -> Iterator[_Step]:
    for name, value in attributes(holder):
        yield ATTRIBUTE, name, value


def _of_module(module: nn.Module) -> Iterator[_Step]:
    stored = stored_dict(module) or {}
    for name, value in stored.items():
        if name not in ("_parameters", "_buffers", "_modules"):
            yield ATTRIBUTE, name, value
    for name, child in dict.items(stored.get("_modules", {})):
        yield (ITEM, int(name), child) if name.isdigit() else (ATTRIBUTE, name, child)


def _of_optimizer(optimizer: Optimizer) -> Iterator[_Step]:
    return (step for step in _attributes(optimizer) if step[1] not in ("param_groups", "state"))


def _of_python_module(module: types.ModuleType) -> Iterator[_Step]:
    names = _names_in_module(module)
    for name, value in _without_dunders(names).items() if _is_programs_module(names) else ():
        yield ATTRIBUTE, name, value


def _of_class(kind: type) -> Iterator[_Step]:
    names = type.__dict__["__dict__"].__get__(kind)
    module = sys.modules.get(str(names.get("__module__")))
    if module is None or _is_programs_module(_names_in_module(module)):
        for name, value in names.items():
            if not name.startswith("__"):
                yield ATTRIBUTE, name, value


def _of_generator(generator: Any) -> Iterator[_Step]:
    name = _FRAME_OF[type(generator)]
    frame = getattr(generator, name)
    if frame is not None:
        yield ATTRIBUTE, name, frame


def _of_frame(frame: types.FrameType) -> Iterator[_Step]:
    yield ATTRIBUTE, "f_locals", variables_of(frame)


_FRAME_OF: dict[type, str] = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
_BY_BASE: dict[type, _Reader] = {
    Tensor: _none,
    nn.Module: _of_module,
    Optimizer: _of_optimizer,
    types.ModuleType: _of_python_module,
    type: _of_class,
    threading.Thread: _attributes,
    types.FrameType: _of_frame,
    **dict.fromkeys(_FRAME_OF, _of_generator),
}
_PLAIN = {*containers.TABLE.values(), *functions.TABLE.values()}
_OUTSIDE = {*outside.TABLE.values()}
