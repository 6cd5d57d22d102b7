"""Resets the process-wide state of libraries: cached answers about the device, and the device they chose.

A rehearsal clears it first, so that libraries query the simulated device, and restores or clears it again afterwards.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from torchmove.internals.stored import LruCache, contents, refill
from torchmove.internals.undo import Undo
from torchmove.rehearsing.sources import ASKS
from torchmove.rehearsing.tensors import CPU

# Dicts shared by all objects of a library class, by module.
_SHARED = {
    "accelerate.state": ("PartialState._shared_state", "AcceleratorState._shared_state", "GradientState._shared_state"),
    "pyro.poutine.runtime": ("_PYRO_PARAM_STORE._params", "_PYRO_PARAM_STORE._param_to_name"),
}
_looked_at: set[str] = set()
_caches: dict[str, Any] = {}  # by module and name


def forget_answers(undo: Undo) -> None:
    """Clear the caches of functions that ask for the device, directly or through other cached functions."""
    _look_for_caches()
    asking = {*ASKS}
    found: list[Any] = []
    while True:
        more = [
            each for each in _caches.values() if each not in found and asking & {*each.__wrapped__.__code__.co_names}
        ]
        if not more:
            break
        found += more
        asking |= {each.__wrapped__.__name__ for each in more}
    for each in found:
        if each.cache_info().currsize:
            each.cache_clear()
        undo.append(each.cache_clear)


def _look_for_caches() -> None:
    for name, module in list(sys.modules.items()):
        if name in _looked_at or name.partition(".")[0] == "torch" or not isinstance(module, types.ModuleType):
            continue
        _looked_at.add(name)
        for own, value in list(vars(module).items()):
            is_cache = isinstance(value, LruCache)
            if is_cache and isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
                _caches[f"{name}.{own}"] = value


def remember_shared(undo: Undo) -> None:
    for holder, name, shared in _shared():
        undo += [partial(refill, shared, contents(shared)), partial(setattr, holder, name, shared)]


def take_chosen(objects: Iterable[Any], home: torch.device, undo: Undo) -> list[str]:
    """Replace the CPU chosen by accelerate with the simulated device, and return a note about this assumption."""
    own = [vars(each) for each in objects if type(each).__module__.startswith("accelerate.")]
    taken = False
    for holder in (*(shared for _, _, shared in _shared()), *own):
        if holder.get("device") == CPU and not holder.get("_cpu"):
            undo.append(partial(holder.__setitem__, "device", holder["device"]))
            holder["device"] = home
            taken = True
    said = f"accelerate chose cpu on this machine; the rehearsal uses {home}. Accelerator(cpu=True) keeps the CPU"
    return [said] if taken else []


def _shared() -> Iterator[tuple[Any, str, dict[Any, Any]]]:
    """Yield each shared dict after its holder and attribute name."""
    for name, paths in _SHARED.items():
        for path in paths if name in sys.modules else ():
            first, last = path.split(".")
            holder = getattr(sys.modules[name], first, None)
            shared = getattr(holder, last, None)
            if isinstance(shared, dict):
                yield holder, last, shared


def take_accelerators(objects: Iterable[Any], home: torch.device, undo: Undo) -> None:
    """Turn the CPU accelerator of a Lightning `Trainer` or `Fabric` into the CUDA accelerator."""
    for each in objects if home.type == "cuda" else ():
        module, own = type(each).__module__, type(each)
        if own.__name__ == "CPUAccelerator" and module.endswith(".accelerators.cpu"):
            undo.append(partial(setattr, each, "__class__", own))
            each.__class__ = sys.modules[f"{module.removesuffix('cpu')}cuda"].CUDAAccelerator
