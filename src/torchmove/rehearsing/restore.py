"""Snapshots of what a step may change: containers, arrays, caches, random numbers, global settings and iterators.

Each `remember` function puts the calls that restore the state on an undo list. A step gets copies of the iterators that
Python can copy; advances of others are reported.
"""

from __future__ import annotations

import array
import collections
import copy
import gc
import itertools
import logging
import os
import queue
import random
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import chain, islice
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from torchmove.internals.guards import Undo
from torchmove.internals.simulation import (
    LoaderIterator,
    batches_yielded,
    default_device_context,
    is_multithreaded,
    print_options,
    set_deterministic_algorithms,
)
from torchmove.internals.stored import ATOMS, CONTAINERS, LruCache, attributes, contents, refill, stored_dict
from torchmove.rehearsing.captured import Captured, closure_of, is_array
from torchmove.surveying.inventory import Inventory


def keepers_of(around: Captured) -> list[Any]:
    """The values of captured variables and class attributes whose contents are recorded."""
    variables = [space[name] for (_, name), space in around.names.items() if name in space]
    attributes = [each for kind in around.classes for each in vars(kind).values()]
    return [each for each in (*variables, *attributes) if _is_kept(each)]


def _insides_of(holders: Iterable[Any]) -> list[dict[Any, Any]]:
    """The internal dicts of the `lru_cache` objects among these. They are only read: the C code depends on them."""
    return [_inside(each) for each in holders if isinstance(each, LruCache)]


def _entries_of(cache: LruCache[Any]) -> list[Any]:
    """The keys, the results and all else that a cache refers to. An unbounded cache keeps the results in its dict."""
    inside = _inside(cache)
    return [*gc.get_referents(cache), *inside, *inside.values()]


def _clear_if_filled(cache: LruCache[Any], before: list[Any]) -> None:
    """Clear the cache if the step added entries, which may hold stand-ins: single entries cannot be removed."""
    known = {*map(id, before)}
    if any(id(each) not in known for each in _entries_of(cache)):
        cache.cache_clear()


def _inside(cache: LruCache[Any]) -> dict[Any, Any]:
    attributes = cache.__dict__
    # The last one: entries, which come first, may be dicts too.
    return [each for each in gc.get_referents(cache) if type(each) is dict and each is not attributes][-1]


def remember(holders: Iterable[Any], undo: Undo) -> int:
    """Snapshot the contents of holders, and of plain containers and arrays in them.

    Returns the number of bytes of arrays that were too large to copy.
    """
    todo, left, missed = list(holders), MOST_ARRAY_BYTES, 0
    seen = {*map(id, [*_insides_of(todo), *_of_other_threads(todo)])}
    while todo:
        holder = todo.pop()
        # Not threading objects: a restored event or lock would lose the threads that wait for it.
        is_atom = type(holder) in ATOMS and not isinstance(holder, _BUFFERS)
        if id(holder) in seen or is_atom or type(holder).__module__ == "threading":
            continue
        seen.add(id(holder))
        if isinstance(holder, memoryview):
            todo.append(holder.obj)
            continue
        has_bytes = is_array(holder) or isinstance(holder, _BUFFERS)
        if not has_bytes or (is_array(holder) and holder.dtype.hasobject):
            inside = holder.flat if is_array(holder) else _contents(holder, undo)
            todo += [each for each in inside if _is_kept(each)]
        if not has_bytes or (is_array(holder) and not holder.flags.writeable):
            continue
        size = memoryview(holder).nbytes if isinstance(holder, _BUFFERS) else holder.nbytes
        if size > left:
            missed += size
        else:
            left -= size
            undo.append(partial(_write, holder, holder.copy() if is_array(holder) else holder[:]))
    return missed


MOST_ARRAY_BYTES = 256 << 20
_BUFFERS = (bytearray, array.array, memoryview)
_WEAK: tuple[Any, ...] = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
# Standard library objects that keep other objects.
_KEEPERS = (
    *(queue.Queue, queue.SimpleQueue, threading.local, ContextVar, *_WEAK),
    *(collections.ChainMap, collections.UserDict, collections.UserList),
)


def _of_other_threads(holders: Iterable[Any]) -> list[Any]:
    """The state that other threads and processes use: restored, it would contradict what they have done."""
    own = [each for each in holders if isinstance(each, (LoaderIterator, ThreadPoolExecutor))]
    inside = (one for each in own for one in vars(each).values())
    return [*own, *(one for one in inside if isinstance(one, (*CONTAINERS, *_KEEPERS)))]


def _is_kept(each: Any) -> bool:
    """Whether the contents of an object are recorded wherever it is found."""
    return isinstance(each, (*CONTAINERS, *_BUFFERS, *_KEEPERS)) or is_array(each)


def _write(holder: Any, before: Any) -> None:
    holder[... if is_array(holder) else slice(None)] = before


def _contents(holder: Any, undo: Undo) -> Iterator[Any]:
    """Yield what is in a holder, and put the calls that restore it on the undo list."""
    if isinstance(holder, CONTAINERS):
        members = contents(holder)
        undo.append(partial(refill, holder, members))
        yield from (value for _, value in members) if isinstance(holder, dict) else members
    elif isinstance(holder, types.FunctionType):
        yield from (*(holder.__defaults__ or ()), *(holder.__kwdefaults__ or {}).values())
        yield from _cells(holder, undo)
    elif isinstance(holder, LruCache):
        undo.append(partial(_clear_if_filled, holder, _entries_of(holder)))
    elif isinstance(holder, _KEEPERS):
        yield from _kept_inside(holder, undo)
    else:
        _remember_random(holder, undo)
    if not isinstance(holder, (type, types.ModuleType, Tensor)):
        yield from _attributes(holder, undo)


def _kept_inside(holder: Any, undo: Undo) -> Iterator[Any]:
    if isinstance(holder, ContextVar):  # the step runs in its own context: nothing to restore
        yield holder.get(None)
    elif isinstance(holder, queue.SimpleQueue):
        waiting = _drained(holder)
        _fill(holder, waiting)
        undo += [partial(_fill, holder, waiting), partial(_drained, holder)]
    elif isinstance(holder, queue.Queue):
        undo.append(partial(_refill_queue, holder, list(holder.queue)))
    elif isinstance(holder, _WEAK):
        members: Any = list(holder) if isinstance(holder, weakref.WeakSet) else list(holder.items())
        undo.append(partial(_refill_weak, holder.data, contents(holder.data), members))


def _drained(waiting: queue.SimpleQueue[Any]) -> list[Any]:
    found = []
    with suppress(queue.Empty):
        while True:
            found.append(waiting.get_nowait())
    return found


def _fill(waiting: queue.SimpleQueue[Any], members: Iterable[Any]) -> None:
    for each in members:
        waiting.put(each)


def _refill_queue(waiting: queue.Queue[Any], members: list[Any]) -> None:
    with waiting.mutex:
        waiting.queue.clear()
        waiting.queue.extend(members)
        waiting.not_empty.notify_all()
        waiting.not_full.notify_all()


def _refill_weak(data: Any, entries: list[Any], _alive: Any) -> None:
    """Restore weak references; `_alive` keeps their objects alive until then."""
    refill(data, entries)


def _remember_random(holder: Any, undo: Undo) -> None:
    """Put the state of a random number generator on the undo list."""
    if isinstance(holder, random.Random):
        with suppress(NotImplementedError):  # SystemRandom has no state
            undo.append(partial(holder.setstate, holder.getstate()))
    elif isinstance(holder, torch.Generator):
        if holder.device.type == "cpu":
            undo.append(partial(holder.set_state, holder.get_state()))
    elif type(holder).__module__.startswith("numpy.random"):
        bits = getattr(holder, "_bit_generator", holder)
        if isinstance(getattr(bits, "state", None), dict):
            undo.append(partial(setattr, bits, "state", bits.state))


def remember_generators(objects: Iterable[Any], undo: Undo) -> None:
    """Snapshot the generators of loaders, samplers and datasets, which a traversal does not enter."""
    todo = [(each, 0) for each in objects if isinstance(each, (DataLoader, Dataset, Sampler))]
    seen: set[int] = set()
    while todo:
        holder, deep = todo.pop()
        if id(holder) in seen or type(holder) in ATOMS or isinstance(holder, (Tensor, type, types.ModuleType)):
            continue
        seen.add(id(holder))
        _remember_random(holder, undo)
        inside = holder if isinstance(holder, (list, tuple)) else getattr(holder, "__dict__", {}).values()
        if deep < _DEEP and len(inside) <= _MANY:
            todo += [(each, deep + 1) for each in inside]


_DEEP, _MANY = 4, 64  # limits of the search for generators: depth, and size of a container


def _cells(function: types.FunctionType, undo: Undo) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            contents = cell.cell_contents
            undo.append(partial(setattr, cell, "cell_contents", contents))
            yield contents


def _attributes(holder: Any, undo: Undo) -> Iterator[Any]:
    stored = getattr(holder, "__dict__", None)
    if type(stored) is dict:
        entries = list(stored.items())
        undo += [partial(refill, stored, entries), partial(_change_class, holder, type(holder))]
        yield from (value for _, value in entries)
    elif stored is None:
        for name, value in list(attributes(holder)):
            undo.append(partial(_set_slot, holder, name, value))
            yield value


def _change_class(holder: Any, kind: type) -> None:
    if type(holder) is not kind:
        holder.__class__ = kind


def _set_slot(holder: Any, name: str, value: Any) -> None:
    with suppress(AttributeError, TypeError):  # read-only: the step could not change it either
        object.__setattr__(holder, name, value)


def remember_names(names: Mapping[tuple[int, str], dict[str, Any]], classes: Iterable[type], undo: Undo) -> None:
    """Snapshot variables of modules and attributes of classes."""
    for (_, name), space in names.items():
        undo.append(partial(_bind, space, name, space.get(name, _UNBOUND)))
    for kind in classes:
        undo.append(partial(_bind_attributes, kind, dict(vars(kind))))


def _bind(space: dict[str, Any], name: str, value: Any) -> None:
    if value is _UNBOUND:
        if not isinstance(space.get(name), types.ModuleType):  # an imported module stays imported
            space.pop(name, None)
    elif space.get(name, _UNBOUND) is not value:
        space[name] = value


def _bind_attributes(kind: type, before: dict[str, Any]) -> None:
    """Restore the attributes of a class, except dunder names."""
    now = dict(vars(kind))
    for name in (name for name in {**now, **before} if not name.startswith("__")):
        if name not in before:
            type.__delattr__(kind, name)
        elif now.get(name, _UNBOUND) is not before[name]:
            type.__setattr__(kind, name, before[name])


_UNBOUND = object()


def remember_globals(undo: Undo) -> None:
    """Snapshot random state and the global settings that a step may change.

    Restoring them imports nothing: an interrupted import may be the reason for restoring.
    """
    undo += [partial(torch.set_rng_state, torch.get_rng_state()), partial(random.setstate, random.getstate())]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        undo.append(partial(numpy_random.set_state, numpy_random.get_state()))
    for ask, put in _SWITCHES:
        before = _answer(ask)
        if before is not _UNBOUND:
            undo.append(partial(_switch, ask, put, before))
    deterministic = torch.are_deterministic_algorithms_enabled()
    undo.append(partial(_set_deterministic, deterministic, torch.is_deterministic_algorithms_warn_only_enabled()))
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    undo.append(partial(torch.set_anomaly_enabled, *anomaly))
    for holder, names in _FLAGS:
        undo += [partial(_set_flag, holder, name, getattr(holder, name)) for name in names]
    undo.append(partial(_set_default_device, default_device_context.__dict__.get("device_context")))
    undo.append(partial(vars(print_options).update, dict(vars(print_options))))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        undo += [partial(numpy.seterr, **numpy.geterr()), partial(numpy.set_printoptions, **numpy.get_printoptions())]
    undo.append(partial(_put_back_environment, dict(os.environ)))
    undo.append(partial(_put_back_filters, warnings.filters, list(warnings.filters)))
    loggers = [(logger, logger.level, *logger.handlers) for logger in _loggers()]
    undo.append(partial(_put_back_loggers, loggers))
    for space in (torch, nn, nn.functional):
        undo.append(partial(_put_back_names, vars(space), dict(vars(space))))
    undo.append(partial(_put_back_classes, *_attributes_of_classes()))


def _put_back_names(space: dict[str, Any], before: dict[str, Any]) -> None:
    """Restore the public names of a torch module, except imported submodules."""
    for name in [name for name in space if not name.startswith("_") and space[name] is not before.get(name, _UNBOUND)]:
        _bind(space, name, before.get(name, _UNBOUND))


def _put_back_environment(before: dict[str, str]) -> None:
    for name in [name for name in os.environ if name not in before]:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _put_back_filters(filters: Any, before: list[Any]) -> None:
    if warnings.filters is filters and filters == before:
        return
    warnings.filters = filters
    filters[:] = before
    with warnings.catch_warnings():  # its exit invalidates the cache of filters
        pass


def _loggers() -> list[logging.Logger]:
    named = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(each for each in named if isinstance(each, logging.Logger))]


def _put_back_loggers(before: list[tuple[Any, ...]]) -> None:
    for logger, level, *handlers in before:
        if logger.level != level:
            logger.setLevel(level)
        refill(logger.handlers, handlers)


def _attributes_of_classes() -> tuple[list[int], list[str], list[Any]]:
    """The number of attributes of each class, all names, and all values.

    Three flat lists: a dict per class would trigger the garbage collector.
    """
    spaces = [vars(kind) for kind in _CLASSES]
    values = [value for space in spaces for value in space.values()]
    return [*map(len, spaces)], [*chain.from_iterable(spaces)], values


def _put_back_classes(counts: list[int], names: list[str], values: list[Any]) -> None:
    now = _attributes_of_classes()
    if now[:2] == (counts, names) and all(map(is_, now[2], values)):
        return
    attributes = zip(names, values, strict=True)
    for kind, count in zip(_CLASSES, counts, strict=True):
        _bind_attributes(kind, dict(islice(attributes, count)))


_CLASSES: tuple[type, ...] = (
    Tensor,
    *(each for each in vars(nn).values() if isinstance(each, type) and issubclass(each, nn.Module)),
)

_backends: Any = torch.backends
_future: Any = torch.__future__
_invariants: Any = torch.sparse.check_sparse_tensor_invariants
_SMALLEST = sys.float_info.min * sys.float_info.epsilon  # times 1.0 is zero if denormal numbers are flushed
_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_warn_always_enabled, torch.set_warn_always),
    (is_multithreaded, torch.autograd.set_multithreading_enabled),
    (lambda: _SMALLEST * 1.0 == 0.0, torch.set_flush_denormal),
    (_invariants.is_enabled, lambda on: (_invariants.enable if on else _invariants.disable)()),
    (_future.get_overwrite_module_params_on_conversion, _future.set_overwrite_module_params_on_conversion),
    (_future.get_swap_module_params_on_conversion, _future.set_swap_module_params_on_conversion),
    (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (lambda: logging.root.manager.disable, logging.disable),
    (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    (gc.get_threshold, lambda before: gc.set_threshold(*before)),
    (os.getcwd, os.chdir),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    (_backends.cuda.mem_efficient_sdp_enabled, _backends.cuda.enable_mem_efficient_sdp),
    (_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
    (_backends.cuda.cudnn_sdp_enabled, _backends.cuda.enable_cudnn_sdp),
)
_REDUCED = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
_FLAGS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (_backends.cudnn, ("benchmark", "benchmark_limit", "deterministic", "enabled", "allow_tf32")),
    (_backends.cuda.matmul, _REDUCED),
    (_backends.mkldnn, ("enabled",)),
    (_backends.opt_einsum, ("enabled", "strategy")),
)


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (RuntimeError, OSError):  # conflicting precision settings, or a deleted working directory
        return _UNBOUND


def _switch(ask: Callable[[], Any], put: Callable[[Any], object], before: Any) -> None:
    if _answer(ask) != before:
        put(before)


def _set_deterministic(mode: bool, warn_only: bool) -> None:
    """torch.use_deterministic_algorithms without its import of torch's compiler."""
    switched = torch.are_deterministic_algorithms_enabled() != mode
    set_deterministic_algorithms(mode, warn_only=warn_only)
    compiler: Any = sys.modules.get("torch._inductor.config")
    if switched and getattr(compiler, "deterministic", mode) != mode:
        compiler.deterministic = mode


def _set_flag(holder: Any, name: str, value: Any) -> None:
    if getattr(holder, name) != value:  # setting a flag may be disallowed
        setattr(holder, name, value)


def _set_default_device(before: Any) -> None:
    """Restore the context of torch.set_default_device. torch.get_default_device would create a tensor there."""
    context = default_device_context
    now = context.__dict__.get("device_context")
    if now is before:
        return
    if now is not None:
        now.__exit__(None, None, None)
    if before is not None:
        before.__enter__()
    context.device_context = before


# ---------------------------------------------------------------- iterators that the step can advance

Put = Callable[[Any], object]

_EMPTY: tuple[Any, ...] = ([], (), range(0), range(1 << 70), "", "\u00e4", b"", bytearray(), {}, set())
_PLAIN: tuple[Any, ...] = (
    *(type(iter(empty)) for empty in _EMPTY),
    *(type(reversed([])), type(reversed(range(0))), type(iter({}.values())), type(iter({}.items()))),
    *(itertools.count, itertools.repeat),
)
_COMPOSED = (zip, map, filter, enumerate, itertools.cycle)  # wrap other iterators, which are copied too
_OF_PYTHON = ("builtins", "itertools", "_csv")  # modules of iterator classes without inspectable state


class Reached(NamedTuple):
    """An iterator that exists before the step: its name, and the functions that replace it where it is stored."""

    name: str
    iterator: Any
    puts: list[Put]


class Iterators:
    """The iterators that a step can reach. Call `spare` before the step and `advanced` after it."""

    def __init__(self, around: Captured, named: Mapping[str, Any], inventory: Inventory) -> None:
        self.reached: dict[int, Reached] = {}
        for name, value, put in [*_variables(around), *_members(named, inventory)]:
            if is_iterator(value):
                found = self.reached.setdefault(id(value), Reached(name, value, []))
                found.puts.extend(filter(None, [put]))
        self.before = {key: _position_of(each.iterator) for key, each in self.reached.items()}

    def spare(self, arguments: Iterable[Any]) -> tuple[Any, ...]:
        """Replace the iterators that can be copied, and return the step's arguments with the copies.

        The undo list of the captured variables and holders restores the originals.
        """
        copies: dict[int, Any] = {}
        for key, (_, iterator, puts) in self.reached.items():
            copied = _copied(iterator)
            if copied is not None:
                copies[key] = copied
                for put in puts:
                    put(copied)
        return tuple(copies.get(id(each), each) for each in arguments)

    def advanced(self) -> list[str]:
        """Messages about the iterators whose position changed."""
        said = "was advanced by the step and cannot be reset: create it again"
        return [
            f"{name} ({_kind(iterator)}) {said}"
            for key, (name, iterator, _) in self.reached.items()
            if not _is_same(_position_of(iterator), self.before[key])
        ]


def _kind(iterator: Any) -> str:
    if isinstance(iterator, LoaderIterator):
        return "the iterator of a DataLoader"
    return "a generator" if isinstance(iterator, types.GeneratorType) else type(iterator).__name__


def is_iterator(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, (types.GeneratorType, LoaderIterator)):
        return True
    return kind.__module__ in _OF_PYTHON and hasattr(kind, "__next__")


def _variables(around: Captured) -> Iterator[tuple[str, Any, Put | None]]:
    """The module variables and closure variables that the step's functions use."""
    for (_, name), space in around.names.items():
        if name in space:
            yield from _with_inner(name, space[name], partial(space.__setitem__, name))
    for function in around.functions:
        for (name, value), cell in zip(closure_of(function).items(), function.__closure__ or (), strict=True):
            yield from _with_inner(name, value, partial(setattr, cell, "cell_contents"))


def _members(named: Mapping[str, Any], inventory: Inventory) -> Iterator[tuple[str, Any, Put | None]]:
    """The given objects, and the attributes and elements of what they hold."""
    for name, value in named.items():
        yield from _with_inner(name, value, None)
    for holder, path in inventory.holders.values():
        if isinstance(holder, (type, types.ModuleType, types.FunctionType, LoaderIterator)):
            continue
        stored = stored_dict(holder) or {}
        for name, value in list(stored.items()):
            yield from _with_inner(f"{path}.{name}", value, partial(stored.__setitem__, name))
        for key, value in _items(holder):
            kind: Any = dict if isinstance(holder, dict) else list
            put = None if isinstance(holder, tuple) else partial(kind.__setitem__, holder, key)
            yield from _with_inner(f"{path}[{key!r}]", value, put)


def _items(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, nn.Module):
        return []
    if isinstance(holder, dict):
        return list(dict.items(holder))
    return list(enumerate(holder)) if type(holder) in (list, tuple) else []


def _with_inner(name: str, value: Any, put: Put | None) -> Iterator[tuple[str, Any, Put | None]]:
    """The value, and what it is bound to if it is a method such as `it.__next__` or a partial."""
    yield name, value, put
    if isinstance(value, (types.MethodWrapperType, types.BuiltinMethodType)):
        yield name, value.__self__, None
    elif isinstance(value, partial):
        yield from ((name, each, None) for each in (*value.args, *value.keywords.values()))


# ---------------------------------------------------------------- positions of iterators


def _position_of(iterator: Any) -> list[Any]:
    """Values that change when an iterator, or one that it reads from, is advanced."""
    found: list[Any] = []
    todo, seen = [iterator], {}
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        found += _own_position(each)
        if not isinstance(each, LoaderIterator):
            inside = _referents(each)
            found += inside if isinstance(each, types.GeneratorType) else []
            members = chain.from_iterable(one for one in inside if type(one) is tuple)  # of a zip
            todo += filter(is_iterator, (*inside, *members))
    return found


def _referents(each: Any) -> list[Any]:
    """What an iterator refers to. Before Python 3.11, a generator's variables are in its frame."""
    frame = each.gi_frame if isinstance(each, types.GeneratorType) else None
    found = gc.get_referents(each) if frame is None else gc.get_referents(each, frame)
    return [one for one in found if not isinstance(one, types.FrameType)]


def _own_position(each: Any) -> list[Any]:
    if isinstance(each, types.GeneratorType):
        return [None if each.gi_frame is None else each.gi_frame.f_lasti]
    if isinstance(each, LoaderIterator):
        return [batches_yielded(each)]
    if isinstance(each, (itertools.count, itertools.repeat)):
        return [repr(each)] if isinstance(each, itertools.count) else []
    if hasattr(each, "__length_hint__"):
        return [each.__length_hint__()]
    return [getattr(each, "line_num", None)]  # a csv reader


def _is_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(
        one is other or (type(one) is type(other) and isinstance(one, (int, str)) and one == other)
        for one, other in zip(now, before, strict=True)
    )


def _apart(state: Any) -> Any:
    return tuple([*one] if isinstance(one, list) else one for one in state) if isinstance(state, tuple) else state


def _copied(iterator: Any) -> Any:
    """A copy at the same position; None if Python cannot copy the iterator without advancing it."""
    kind = type(iterator)
    with suppress(TypeError, ValueError, AttributeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in _PLAIN:
            return copy.copy(iterator)
        if kind in _COMPOSED:
            make, arguments, *state = iterator.__reduce__()
            inner = [_copied(each) if hasattr(type(each), "__next__") else each for each in arguments]
            if any(one is None and each is not None for one, each in zip(inner, arguments, strict=True)):
                return None
            made = make(*inner)
            for each in state:  # the state of a cycle: the elements so far, and whether it has started over
                made.__setstate__(_apart(each))
            return made
    return None
