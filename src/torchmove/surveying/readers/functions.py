"""Functions: closure cells, defaults, attributes, bound objects, arguments of a partial, entries of a cache."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterator
from typing import Any

from torchmove.internals.stored import ATOMS, LruCache, attributes
from torchmove.surveying.paths import ATTRIBUTE, CELL, REFERENT, Child, Diagnostic, Reader


def read_function(holder: types.FunctionType) -> Iterator[Child]:
    for index, cell in enumerate(holder.__closure__ or ()):
        try:
            yield Child(CELL, index, cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    yield Child(ATTRIBUTE, "__defaults__", holder.__defaults__)
    yield Child(ATTRIBUTE, "__kwdefaults__", holder.__kwdefaults__)
    for name, value in holder.__dict__.items():
        yield Child(ATTRIBUTE, name, value)


def read_method(holder: types.MethodType) -> Iterator[Child]:
    yield Child(ATTRIBUTE, "__self__", holder.__self__)
    yield Child(ATTRIBUTE, "__func__", holder.__func__)


def read_bound_builtin(holder: Any) -> Iterator[Child]:
    yield Child(ATTRIBUTE, "__self__", holder.__self__)


def read_partial(holder: functools.partial[Any]) -> Iterator[Child]:
    yield Child(ATTRIBUTE, "func", holder.func)
    yield Child(ATTRIBUTE, "args", holder.args)
    yield Child(ATTRIBUTE, "keywords", holder.keywords)
    for name, value in attributes(holder):
        yield Child(ATTRIBUTE, name, value)


def read_cell(holder: types.CellType) -> Iterator[Child]:
    try:
        yield Child(ATTRIBUTE, "cell_contents", holder.cell_contents)
    except ValueError:  # not filled yet
        return


def read_static(holder: Any) -> Iterator[Child]:
    yield Child(ATTRIBUTE, "__func__", holder.__func__)


def read_cached(holder: Any) -> Iterator[Child | Diagnostic]:
    # Only the garbage collector gives access to the entries of an lru_cache.
    if holder.cache_info().currsize:
        yield Diagnostic("N030", "the entries of this lru_cache belong to the state and move")
    for index, value in enumerate(gc.get_referents(holder)):
        if type(value) not in ATOMS:
            yield Child(REFERENT, index, value)


TABLE: dict[type | str, Reader] = {
    types.FunctionType: read_function,
    types.MethodType: read_method,
    types.BuiltinFunctionType: read_bound_builtin,
    types.MethodWrapperType: read_bound_builtin,
    functools.partial: read_partial,
    LruCache: read_cached,
    types.CellType: read_cell,
    staticmethod: read_static,
    classmethod: read_static,
}
