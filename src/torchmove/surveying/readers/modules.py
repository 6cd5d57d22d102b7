"""Modules: parameters, buffers, submodules, and everything else attached to them: attributes, hooks, caches."""

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

from torchmove.internals.distributed import (
    SHARDED_MODULE,
    flat_of,
    fsdp_obstacle,
    is_fsdp_hook,
    is_gathered,
    shards_of,
    whole_of,
)
from torchmove.internals.graphs import in_live_graphs
from torchmove.internals.stored import ATOMS, is_caching, pruned_name, slots
from torchmove.surveying.paths import ATTRIBUTE, ITEM, Child, Children, Diagnostic, Reader, make_child, make_children

# The `__dict__` as Python stores it, also where a class defines a property of the same name.
_stored = vars(nn.Module)["__dict__"].__get__
_REGISTERED = {"_parameters", "_buffers", "_modules"}
# What every new module stores: the registered tensors and modules, and containers for hooks that are mostly empty.
_STANDARD = list(vars(nn.Module()))
_HOOKS = [name for name in _STANDARD if name not in _REGISTERED and name != "training"]
_hooks = itemgetter(*map(_STANDARD.index, _HOOKS))  # by their position
_PLAIN_CONTAINERS = {dict, OrderedDict, list, set, tuple}  # most modules have a dozen of these for hooks, all empty
# Their children are reached by index or key; those of all other modules by name.
_INDEXED = (nn.Sequential, nn.ModuleList)
_KEYED = (nn.ModuleDict, nn.ParameterDict)
_NUMBERS = {int, float, bool, type(None)}
_SIMPLE = ATOMS | {tuple, list}  # the last two if they contain only numbers: shapes, strides, paddings
_ODD = (nn.ParameterList, parametrize.ParametrizationList, fx.GraphModule)


def read(module: Any) -> Iterable[Child | Children | Diagnostic] | Children:
    stored = _stored(module)
    how, indexed, is_odd = _form_of(type(module))
    if is_odd or not _has_only_registered(stored):
        return _read_all(module, stored)
    # Nearly all modules get here, and most of them have only parameters.
    parameters, buffers, children = stored["_parameters"], stored["_buffers"], stored["_modules"]
    registered_parameters = make_children((how, parameters or {}, "parameter", None, None))
    if not buffers and not children:
        return registered_parameters
    return [
        registered_parameters,
        make_children((how, buffers or {}, "buffer", None, None)),
        *_children(children or {}, how, indexed),
    ]


def read_slots(module: Any) -> Iterator[Child]:
    """What a module stores in `__slots__`, which is not in its `__dict__`."""
    for name, value in slots(module):
        yield make_child((ATTRIBUTE, name, value, None, None))


class _Form(NamedTuple):
    """How a module class stores its children."""

    how: str  # the step that leads to its tensors and children
    indexed: bool  # its children are reached by index
    is_odd: bool  # the short way to read it misses something, or gets the paths wrong


def _form_of(kind: type) -> _Form:
    known = _FORMS.get(kind)
    if known is not None:
        return known
    how = ITEM if issubclass(kind, _KEYED) else ATTRIBUTE
    return _Form(how, issubclass(kind, _INDEXED), issubclass(kind, _ODD))


# Only torch's own classes: others may be temporary, and would be kept alive here.
_FORMS: dict[type, _Form] = {}
_FORMS |= {kind: _form_of(kind) for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.Module)}


def _has_only_registered(stored: dict[str, Any]) -> bool:
    """Whether it has no hooks, and no attributes besides numbers and the like. Takes only a few calls."""
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
        yield _ACCELERATE_HOOKS
    if issubclass(kind, parametrize.ParametrizationList) and is_caching():
        yield _CACHED
    if issubclass(kind, fx.GraphModule):
        yield from _device_constants(module)
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
            yield Diagnostic("N020", f"the plain {kind.__name__} .{name} holds modules that model.parameters() omits")
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
            yield Diagnostic("R021", f"{name}: {why}", "finish the training step first, or move before fully_shard")
        if is_gathered(shard):
            yield Diagnostic(
                "R028", f"{name} is gathered: the full parameter is registered, not the shard", "model.reshard()"
            )
        yield Child(ITEM, f"shard of {name}", flat)


_DROP_THE_GRAPH = "delete the loss and the outputs (del loss), or call backward() first"


def _parameters(kind: type, how: str, registered: dict[str, Any]) -> Children:
    if issubclass(kind, nn.ParameterList):
        return Children(ITEM, {int(name): value for name, value in registered.items()}, "parameter")
    return make_children((how, registered, "parameter", None, None))


def _computed_names(stored: dict[str, Any]) -> set[str]:
    """The attributes that a hook computes before each forward; nothing runs their graph backward."""
    hooks = stored["_forward_pre_hooks"].values()
    names = {hook.name for hook in hooks if type(hook) in (WeightNorm, SpectralNorm)}
    return names | {pruned_name(hook) for hook in hooks if issubclass(type(hook), prune.BasePruningMethod)}


def _device_constants(module: Any) -> Iterator[Diagnostic]:
    for node in module.graph.nodes:
        if any(type(value) is torch.device for value in (*node.args, *node.kwargs.values())):
            yield Diagnostic(
                "R023",
                f"its graph contains a device as a constant: {node.format_node()}",
                "trace or export the module again on the target",
            )


def _holds_module(values: Any, registered: dict[str, Any]) -> bool:
    """Whether it contains a module that is not also a registered child."""
    children = {*map(id, registered.values())}
    inside = values.values() if issubclass(type(values), dict) else values
    return any(issubclass(type(value), nn.Module) and id(value) not in children for value in inside)


_ACCELERATE_HOOKS = Diagnostic(
    "R024",
    "accelerate's hooks on this module move its weights on every call",
    "accelerate.hooks.remove_hook_from_submodules(model), or load it without device_map",
)

_CACHED = Diagnostic(
    "R027",
    "parametrize.cached() is active: its cache would keep the old tensors",
    "move outside of the `with parametrize.cached():` block",
)

_COMPILED = Diagnostic("N022", "compiled: the first call after the move compiles again")
# Set by `module.compile()`: it calls the module that holds it, and holds nothing else of the state.
_COMPILED_CALL = "_compiled_call_impl"

TABLE: dict[type | str, Reader] = {
    nn.Module: read,
    SHARDED_MODULE: read_sharded,
    "torch._dynamo.eval_frame:OptimizedModule": read_compiled,
}
