"""Functions: closure cells, defaults, attributes, bound objects, arguments of a partial, entries of a cache."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterator
from typing import Any

from torchmove.internals.stored import ATOMS, LruCache, attributes
from torchmove.surveying.children import Child, Diagnostic, Reader, attribute
from torchmove.surveying.paths import CELL, REFERENT


def read_function(holder: types.FunctionType) -> Iterator[Child]:
    for index, cell in enumerate(holder.__closure__ or ()):
        try:
            yield Child(CELL, index, cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    yield attribute("__defaults__", holder.__defaults__)
    yield attribute("__kwdefaults__", holder.__kwdefaults__)
    for name, value in holder.__dict__.items():
        yield attribute(name, value)


def read_method(holder: types.MethodType) -> Iterator[Child]:
    yield attribute("__self__", holder.__self__)
    yield attribute("__func__", holder.__func__)


def read_bound_builtin(holder: Any) -> Iterator[Child]:
    yield attribute("__self__", holder.__self__)


def read_partial(holder: functools.partial[Any]) -> Iterator[Child]:
    yield attribute("func", holder.func)
    yield attribute("args", holder.args)
    yield attribute("keywords", holder.keywords)
    for name, value in attributes(holder):
        yield attribute(name, value)


def read_cell(holder: types.CellType) -> Iterator[Child]:
    try:
        yield attribute("cell_contents", holder.cell_contents)
    except ValueError:  # not filled yet
        return


def read_static(holder: Any) -> Iterator[Child]:
    yield attribute("__func__", holder.__func__)


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
