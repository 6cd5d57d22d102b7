"""Modules: parameters, buffers, children, and everything else that hangs on them: attributes, hooks, caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from torchmove.internals.fsdp import (
    SHARDED_MODULE,
    flat_of,
    fsdp_obstacle,
    is_fsdp_hook,
    is_gathered,
    shards_of,
    whole_of,
)
from torchmove.internals.graphs import in_live_graphs
from torchmove.internals.modules import is_caching, pruned_name
from torchmove.internals.stored import ATOMS, slots
from torchmove.surveying.children import Child, Children, Diagnostic, Reader, make_child, make_children
from torchmove.surveying.paths import ATTRIBUTE, ITEM

# The `__dict__` that Python keeps, also where a class defines a property of that name.
_stored = vars(nn.Module)["__dict__"].__get__
_REGISTERED = {"_parameters", "_buffers", "_modules"}
# What every module has in the beginning: the registered, and containers for hooks that are nearly always empty.
_STANDARD = list(vars(nn.Module()))
_HOOKS = [name for name in _STANDARD if name not in _REGISTERED and name != "training"]
_hooks = itemgetter(*map(_STANDARD.index, _HOOKS))  # by their places
_PLAIN_CONTAINERS = {dict, OrderedDict, list, set, tuple}  # most modules have a dozen of them, for hooks, all empty
# Their children are reached by index or key; those of all others by name.
_INDEXED = (nn.Sequential, nn.ModuleList)
_KEYED = (nn.ModuleDict, nn.ParameterDict)
_NUMBERS = {int, float, bool, type(None)}
_SIMPLE = ATOMS | {tuple, list}  # the last two of numbers alone: shapes, strides, paddings
_ODD = (nn.ParameterList, parametrize.ParametrizationList, fx.GraphModule)


def read(module: Any) -> Iterable[Child | Children | Diagnostic] | Children:
    stored = _stored(module)
    how, indexed, is_odd = _form_of(type(module))
    if is_odd or not _holds_registered_alone(stored):
        return _read_all(module, stored)
    # Nearly all modules; and most of them have parameters and nothing else.
    parameters, buffers, children = stored["_parameters"], stored["_buffers"], stored["_modules"]
    bunch = make_children((how, parameters or {}, "parameter", None, None))
    if not buffers and not children:
        return bunch
    return [bunch, make_children((how, buffers or {}, "buffer", None, None)), *_children(children or {}, how, indexed)]


def read_slots(module: Any) -> Iterator[Child]:
    """What a module keeps in `__slots__`: neither torch nor its `__dict__` knows of it."""
    for name, value in slots(module):
        yield make_child((ATTRIBUTE, name, value, None, None))


class _Form(NamedTuple):
    """What the class of a module says."""

    how: str  # its tensors and children are reached
    indexed: bool  # its children are, by their numbers
    is_odd: bool  # it is more than what it has stored, or stores it in a way of its own


def _form_of(kind: type) -> _Form:
    known = _FORMS.get(kind)
    if known is not None:
        return known
    how = ITEM if issubclass(kind, _KEYED) else ATTRIBUTE
    return _Form(how, issubclass(kind, _INDEXED), issubclass(kind, _ODD))


# Of torch's own classes. Others may be made and forgotten, and are not to be remembered here.
_FORMS: dict[type, _Form] = {}
_FORMS |= {kind: _form_of(kind) for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.Module)}


def _holds_registered_alone(stored: dict[str, Any]) -> bool:
    """No hooks, no attributes of its own but numbers and the like. All of it is looked at by a few calls."""
    names, values = list(stored), list(stored.values())
    if names[: len(_STANDARD)] != _STANDARD or any(_hooks(values)) or "_hf_hook" in stored:
        return False
    own = values[len(_STANDARD) :]
    kinds = {*map(type, own)}
    if kinds <= _NUMBERS:
        return True
    if any("device" in str(name) for name in names[len(_STANDARD) :]):
        return False
    inside = chain.from_iterable(value for value in own if type(value) in (tuple, list))
    return kinds <= _SIMPLE and {*map(type, inside)} <= _NUMBERS


def _children(modules: dict[str, Any], how: str, indexed: bool) -> Iterator[Child]:
    for name, value in modules.items():
        number = indexed and name.isdecimal()
        yield make_child((ITEM, int(name), value, None, None) if number else (how, name, value, None, None))


def _read_all(module: Any, stored: dict[str, Any]) -> Iterator[Child | Children | Diagnostic]:
    kind: type = type(module)
    how, indexed, _ = _form_of(kind)
    if "_hf_hook" in stored:
        yield _PLACED_BY_ACCELERATE
    if issubclass(kind, parametrize.ParametrizationList) and is_caching():
        yield _CACHED
    if issubclass(kind, fx.GraphModule):
        yield from _baked_devices(module)
    if stored.get("_parameters"):
        yield _parameters(kind, how, stored["_parameters"])
    if stored.get("_buffers"):
        yield make_children((how, stored["_buffers"], "buffer", None, None))
    yield from _children(stored.get("_modules", {}), how, indexed)
    computed = _computed_names(stored) if stored.get("_forward_pre_hooks") else ()
    if stored.get(_COMPILED_CALL) is not None:
        yield _COMPILED
    for name in [name for name in stored if name not in _REGISTERED and name != _COMPILED_CALL]:
        value = stored[name]
        kind = type(value)
        if kind is str and name.endswith("device"):
            yield make_child((ATTRIBUTE, name, value, None, None))
        if kind in ATOMS or (kind in _PLAIN_CONTAINERS and not value):
            continue
        if name in _HOOKS and kind is OrderedDict and all(map(is_fsdp_hook, value.values())):
            continue
        if kind in _PLAIN_CONTAINERS and _holds_module(value, stored.get("_modules", {})):
            yield Diagnostic(
                "N020", f"modules in the plain {kind.__name__} .{name}: no optimizer sees their parameters"
            )
        yield Child(ATTRIBUTE, name, value, "computed" if name in computed else None)


def read_compiled(module: Any) -> Iterator[Child | Diagnostic]:
    """What `torch.compile(module)` returns."""
    yield _COMPILED
    yield make_child((ATTRIBUTE, "_orig_mod", _stored(module)["_modules"]["_orig_mod"], None, None))


def read_sharded(module: Any) -> Iterator[Child | Children | Diagnostic]:
    yield from _read_all(module, _stored(module))
    shards = list(shards_of(module))
    if in_live_graphs([whole for whole in map(whole_of, shards) if whole is not None]):
        yield Diagnostic(
            "R033", "a forward pass has used its shards and its graph can still run backward", _DROP_THE_GRAPH
        )
    for shard in shards:
        name, flat = flat_of(shard)
        why = fsdp_obstacle(shard)
        if why:
            yield Diagnostic("R021", f"{name}: {why}", "finish the step first, or move before fully_shard")
        if is_gathered(shard):
            yield Diagnostic(
                "R028", f"{name} is gathered: not the shard, the whole is registered now", "model.reshard()"
            )
        yield Child(ITEM, f"shard of {name}", flat)


_DROP_THE_GRAPH = "drop the loss and the outputs (del loss), or call backward() first"


def _parameters(kind: type, how: str, registered: dict[str, Any]) -> Children:
    if issubclass(kind, nn.ParameterList):
        return Children(ITEM, {int(name): value for name, value in registered.items()}, "parameter")
    return make_children((how, registered, "parameter", None, None))


def _computed_names(stored: dict[str, Any]) -> set[str]:
    """The attributes that a hook computes anew before each forward: their graph is no one's to run."""
    hooks = stored["_forward_pre_hooks"].values()
    names = {hook.name for hook in hooks if type(hook) in (WeightNorm, SpectralNorm)}
    return names | {pruned_name(hook) for hook in hooks if issubclass(type(hook), prune.BasePruningMethod)}


def _baked_devices(module: Any) -> Iterator[Diagnostic]:
    for node in module.graph.nodes:
        if any(type(value) is torch.device for value in (*node.args, *node.kwargs.values())):
            yield Diagnostic(
                "R023",
                f"a graph with a device baked in: {node.format_node()}",
                "trace or export the module again on the target",
            )


def _holds_module(values: Any, registered: dict[str, Any]) -> bool:
    """One that is not a child as well."""
    children = {*map(id, registered.values())}
    inside = values.values() if issubclass(type(values), dict) else values
    return any(issubclass(type(value), nn.Module) and id(value) not in children for value in inside)


_PLACED_BY_ACCELERATE = Diagnostic(
    "R024",
    "accelerate placed this module: its hooks move weights on every call",
    "remove_hook_from_submodules(model), or load it without device_map",
)

_CACHED = Diagnostic(
    "R027",
    "parametrized tensors are being cached: the cache would keep the old ones",
    "move outside of `with parametrize.cached():`",
)

_COMPILED = Diagnostic("N022", "compiled: the first call after the move compiles again")
# What `module.compile()` has made: it calls the module that holds it, and holds nothing else of the state.
_COMPILED_CALL = "_compiled_call_impl"

TABLE: dict[type | str, Reader] = {
    nn.Module: read,
    SHARDED_MODULE: read_sharded,
    "torch._dynamo.eval_frame:OptimizedModule": read_compiled,
}
