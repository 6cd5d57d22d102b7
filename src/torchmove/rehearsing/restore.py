"""An `lru_cache` that a step may fill. What it keeps inside hangs together in C: it is looked at, and never changed."""

from __future__ import annotations

import gc
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from torchmove.internals.simulation import default_device_context, set_deterministic_algorithms
from torchmove.internals.stored import ATOMS, CONTAINERS, LruCache, attributes, contents, refill
from torchmove.internals.undo import Undo


def insides_of(holders: Iterable[Any]) -> list[dict[Any, Any]]:
    """The dicts that the caches among these work with."""
    return [_inside(each) for each in holders if isinstance(each, LruCache)]


def entries_of(cache: LruCache[Any]) -> list[Any]:
    """The keys and the results, and what else it refers to. Without a bound, its dict has the results."""
    inside = _inside(cache)
    return [*gc.get_referents(cache), *inside, *inside.values()]


def clear_if_filled(cache: LruCache[Any], before: list[Any]) -> None:
    """What the step has added may hold stand-ins, and no single entry can be taken out."""
    known = {*map(id, before)}
    if any(id(each) not in known for each in entries_of(cache)):
        cache.cache_clear()


def _inside(cache: LruCache[Any]) -> dict[Any, Any]:
    attributes = cache.__dict__
    # It comes after the entries, among which may be dicts too.
    return [each for each in gc.get_referents(cache) if type(each) is dict and each is not attributes][-1]


def remember(holders: Iterable[Any], undo: Undo) -> int:
    """The contents of holders, and of the plain containers and the arrays in them. Returns how many bytes of arrays
    were too many to be copied."""
    todo, left, missed = list(holders), MOST_ARRAY_BYTES, 0
    seen = {*map(id, insides_of(todo))}
    while todo:
        holder = todo.pop()
        # Threads wait at an event or a lock: put back, it would not know of them.
        if id(holder) in seen or type(holder) in ATOMS or type(holder).__module__ == "threading":
            continue
        seen.add(id(holder))
        if not is_array(holder) or holder.dtype.hasobject:
            inside = holder.flat if is_array(holder) else _contents(holder, undo)
            todo += [each for each in inside if isinstance(each, CONTAINERS) or is_array(each)]
        if not is_array(holder):
            continue
        if holder.flags.writeable and holder.nbytes > left:
            missed += holder.nbytes
        elif holder.flags.writeable:
            left -= holder.nbytes
            undo.append(partial(_write, holder, holder.copy()))
    return missed


MOST_ARRAY_BYTES = 256 << 20


def is_array(each: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(each, numpy.ndarray)


def _write(array: Any, before: Any) -> None:
    array[...] = before


def _contents(holder: Any, undo: Undo) -> Iterator[Any]:
    """What is in a holder; how to put it back there goes on the list."""
    if isinstance(holder, CONTAINERS):
        members = contents(holder)
        undo.append(partial(refill, holder, members))
        yield from (value for _, value in members) if isinstance(holder, dict) else members
    elif isinstance(holder, types.FunctionType):
        yield from (*(holder.__defaults__ or ()), *(holder.__kwdefaults__ or {}).values())
        yield from _cells(holder, undo)
    elif isinstance(holder, LruCache):
        undo.append(partial(clear_if_filled, holder, entries_of(holder)))
    else:
        _remember_random(holder, undo)
    if not isinstance(holder, (type, types.ModuleType, Tensor)):
        yield from _attributes(holder, undo)


def _remember_random(holder: Any, undo: Undo) -> None:
    """A generator of random numbers goes on where it was."""
    if isinstance(holder, random.Random):
        with suppress(NotImplementedError):  # it asks the operating system
            undo.append(partial(holder.setstate, holder.getstate()))
    elif isinstance(holder, torch.Generator):
        if holder.device.type == "cpu":
            undo.append(partial(holder.set_state, holder.get_state()))
    elif type(holder).__module__.startswith("numpy.random"):
        bits = getattr(holder, "_bit_generator", holder)
        if isinstance(getattr(bits, "state", None), dict):
            undo.append(partial(setattr, bits, "state", bits.state))


def remember_generators(objects: Iterable[Any], undo: Undo) -> None:
    """Those of loaders, their samplers and their data, which a walk does not enter."""
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


_DEEP, _MANY = 4, 64  # how far generators are looked for


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
    with suppress(AttributeError, TypeError):  # it cannot be set: then the step could not either
        object.__setattr__(holder, name, value)


def remember_names(names: Mapping[tuple[int, str], dict[str, Any]], classes: Iterable[type], undo: Undo) -> None:
    """What the variables of modules and the attributes of classes are bound to."""
    for (_, name), space in names.items():
        undo.append(partial(_bind, space, name, space.get(name, _UNBOUND)))
    for kind in classes:
        undo.append(partial(_bind_attributes, kind, dict(vars(kind))))


def _bind(space: dict[str, Any], name: str, value: Any) -> None:
    if value is _UNBOUND:
        if not isinstance(space.get(name), types.ModuleType):  # it was imported, and stays so
            space.pop(name, None)
    elif space.get(name, _UNBOUND) is not value:
        space[name] = value


def _bind_attributes(kind: type, before: dict[str, Any]) -> None:
    """But for what Python itself keeps there."""
    now = dict(vars(kind))
    for name in (name for name in {**now, **before} if not name.startswith("__")):
        if name not in before:
            type.__delattr__(kind, name)
        elif now.get(name, _UNBOUND) is not before[name]:
            type.__setattr__(kind, name, before[name])


_UNBOUND = object()


def remember_globals(undo: Undo) -> None:
    """Random numbers, and the modes that a step may leave switched. To put them back imports nothing: an import may be
    what was interrupted."""
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


_backends: Any = torch.backends
_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_warn_always_enabled, torch.set_warn_always),
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
)


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except RuntimeError:  # torch does not say what the precision is where it was set in several ways
        return _UNBOUND


def _switch(ask: Callable[[], Any], put: Callable[[Any], object], before: Any) -> None:
    if _answer(ask) != before:
        put(before)


def _set_deterministic(mode: bool, warn_only: bool) -> None:
    """As torch.use_deterministic_algorithms does; but that one imports torch's compiler."""
    switched = torch.are_deterministic_algorithms_enabled() != mode
    set_deterministic_algorithms(mode, warn_only=warn_only)
    compiler: Any = sys.modules.get("torch._inductor.config")
    if switched and getattr(compiler, "deterministic", mode) != mode:
        compiler.deterministic = mode


def _set_flag(holder: Any, name: str, value: Any) -> None:
    if getattr(holder, name) != value:  # torch may have forbidden to set it at all
        setattr(holder, name, value)


def _set_default_device(before: Any) -> None:
    """To ask for it is to make a tensor there: what was set is put back as it was."""
    context = default_device_context
    now = context.__dict__.get("device_context")
    if now is before:
        return
    if now is not None:
        now.__exit__(None, None, None)
    if before is not None:
        before.__enter__()
    context.device_context = before
