"""Read what objects store, without running code of their classes: no property, no `__getattr__`.

The last part has the private names of `nn.Module`: `_apply`, which `Module.to` calls, and what torch's own modules
keep.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
import fractions
import functools
import pathlib
import re
import threading
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

LruCache = functools._lru_cache_wrapper

# Types whose values hold no other objects. The exact type must match: a subclass may have attributes.
ATOMS: frozenset[type] = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice),
        *(type(Ellipsis), type(NotImplemented), object),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern),
        *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
        *(threading.Condition, threading.Event, threading.Semaphore, threading.BoundedSemaphore, threading.Barrier),
        *(torch.dtype, torch.layout, torch.memory_format, torch.Size, torch.qscheme, torch.finfo, torch.iinfo),
    }
)


def attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """The names and values in an object's `__dict__` and `__slots__`."""
    stored = stored_dict(holder)
    if stored is not None:
        yield from dict.items(stored)
    yield from slots(holder)


def stored_dict(holder: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, as Python stores it; None if it has none."""
    kind = type(holder)
    for base in kind.__mro__:
        # Only the descriptors that Python itself makes: a class may define a property of the same name.
        found = base.__dict__.get("__dict__")
        if found is not None and type(found) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            return cast("dict[str, Any]", found.__get__(holder))
    # Where the class defines such a property itself, only the C API returns the dict.
    return cast("dict[str, Any]", _generic_dict(holder, None)) if kind.__dictoffset__ else None


_generic_dict = ctypes.pythonapi.PyObject_GenericGetDict
_generic_dict.argtypes, _generic_dict.restype = (ctypes.py_object, ctypes.c_void_p), ctypes.py_object


def is_frozen(kind: type) -> bool:
    """Whether this is a frozen dataclass."""
    return bool(getattr(kind.__dict__.get("__dataclass_params__"), "frozen", False))


def has_slots(kind: type) -> bool:
    """Whether objects of this class can store values in `__slots__`."""
    return any(base.__dict__.get("__slots__") for base in kind.__mro__)


def slots(holder: Any) -> Iterator[tuple[str, Any]]:
    """The names and values in an object's `__slots__`, including those of its base classes."""
    for base in type(holder).__mro__:
        if "__slots__" not in base.__dict__:
            continue
        for name, descriptor in base.__dict__.items():
            if type(descriptor) is types.MemberDescriptorType:
                try:
                    yield name, descriptor.__get__(holder)
                except AttributeError:  # never set
                    continue


# ---------------------------------------------------------------- containers, without the overrides of their classes

CONTAINERS = (OrderedDict, dict, list, set, deque)


def contents(container: Any) -> list[Any]:
    """The members of a container; of a dict, its keys and values."""
    kind: Any = _kind_of(container)
    return list(kind.items(container) if issubclass(kind, dict) else kind.__iter__(container))


def refill(container: Any, members: Sequence[Any]) -> None:
    """Give a container its earlier contents back, in place and in order. Can be interrupted and called again."""
    kind: Any = _kind_of(container)
    now = contents(container)
    if len(now) == len(members):
        flat = chain.from_iterable if issubclass(kind, dict) else iter
        if all(map(is_, flat(now), flat(members))):
            return
    kind.clear(container)
    if issubclass(kind, dict):
        for key, value in members:
            kind.__setitem__(container, key, value)  # OrderedDict's own method: it stores its order separately
    elif kind is set:
        kind.update(container, members)
    else:
        kind.extend(container, members)


def _kind_of(container: Any) -> type:
    return next(kind for kind in CONTAINERS if isinstance(container, kind))


# ---------------------------------------------------------------- modules

APPLY = "_apply"


def apply_of(kind: type[nn.Module]) -> Callable[..., Any]:
    """The `_apply` method of a module class."""
    return kind._apply


def overrides_apply(kind: type) -> bool:
    """Whether a module class overrides `_apply`. Takes the type, since a weak proxy passes isinstance()."""
    return issubclass(kind, nn.Module) and kind._apply is not nn.Module._apply


def is_recurrent(kind: type[nn.Module]) -> bool:
    """Whether it inherits torch's `nn.RNNBase._apply`, which flattens the weights and replaces no object."""
    return kind._apply is nn.RNNBase._apply


def call_apply(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    module._apply(function)  # type: ignore[no-untyped-call]


def flat_weights(module: nn.RNNBase) -> list[Tensor]:
    """The weights of a recurrent module, as its forward takes them."""
    return [each for each in module._flat_weights if each is not None]


def is_caching() -> bool:
    """Whether `with parametrize.cached():` is active."""
    return bool(parametrize._cache_enabled)


def pruned_name(hook: prune.BasePruningMethod) -> str:
    """The attribute that a pruning method computes before each forward."""
    return str(hook._tensor_name)


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """The modules registered with a module, including the same module under several names."""
    return module._modules


def registered_in(module: nn.Module) -> dict[str, Tensor | None]:
    """The parameters and buffers registered with a module itself."""
    return {**module._parameters, **module._buffers}
