"""TorchScript modules: the attributes of their C++ objects, and the constants in their programs.

Such a module keeps its attributes in C++. A tensor attribute always returns the same Python object; a list, a dict or a
device is returned as a copy. C++ holds the implementation of a tensor, not the Python object: after the implementation
is swapped, the attribute has to be set again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.jit import _recursive

from torchmove.internals.stored import stored_dict

# ---------------------------------------------------------------- attributes


def scripted_within(holder: Any) -> Any:
    """The scripted module inside a traced module or a user's subclass, which only forward to it."""
    return (stored_dict(holder) or {}).get("_actual_script_module", holder)


def is_scripted(holder: Any) -> bool:
    return issubclass(type(holder), torch.jit.ScriptModule) and "_c" in (stored_dict(scripted_within(holder)) or {})


def module_of_method(method: Any) -> Any:
    return _recursive.wrap_cpp_module(method.owner)  # type: ignore[no-untyped-call]


def attributes_of(scripted: Any) -> dict[str, Any]:
    """Parameters, buffers and all other attributes, without submodules.

    Containers are returned read-only: they are copies, and writing to them would change nothing.
    """
    return {name: _unwritable(value) for name, value in _attributes_of(scripted)}


def set_attribute(holder: Any, name: str, value: Any) -> None:
    _cpp(holder).setattr(name, value)


def _cpp(holder: Any) -> Any:
    return vars(scripted_within(holder))["_c"]


def _attributes_of(holder: Any) -> Iterator[tuple[str, Any]]:
    cpp = _cpp(holder)
    kind: Any = torch._C.ConcreteModuleType.from_jit_type(cpp._type())
    declared = kind.get_attributes()
    yield from ((name, cpp.getattr(name)) for name in declared)


def _unwritable(value: Any) -> Any:
    if type(value) in (list, tuple):
        return tuple(map(_unwritable, value))
    if type(value) is dict:
        return MappingProxyType({key: _unwritable(each) for key, each in value.items()})
    return value


class ScriptedAttributes:
    """The attributes of scripted modules that hold tensors, to be set again after these have been swapped.

    They are read before the first swap: afterwards the C++ object returns other tensors.
    """

    def __init__(self, holders: Iterable[Any]) -> None:
        scripted = [holder for holder in holders if is_scripted(holder)]
        found = [(holder, *each) for holder in scripted for each in _attributes_of(holder)]
        self._found = [(holder, name, value) for holder, name, value in found if _has_tensors(value)]

    def set(self) -> None:
        for holder, name, value in self._found:
            set_attribute(holder, name, value)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(_has_tensors, value.values()))
    # An object of a scripted class is returned as a copy too.
    inside = value if isinstance(value, (list, tuple)) else (stored_dict(value) or {}).values()
    return any(map(_has_tensors, inside))


# ---------------------------------------------------------------- programs


class Baked(NamedTuple):
    """A tensor or a device that is a constant of a program, and its source line, if known."""

    what: str
    device: torch.device
    where: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


def baked_into(module: Any) -> list[Baked]:
    """The constants in the methods of a scripted module, without those of its submodules."""
    below = [child for child in vars(scripted_within(module))["_modules"].values() if is_scripted(child)]
    inherited = {each for child in below for each in _baked_into_methods(child)}
    return [each for each in _baked_into_methods(module) if each not in inherited]


def _baked_into_methods(module: nn.Module) -> tuple[Baked, ...]:
    cpp = _cpp(module)
    names = tuple(cpp._method_names())
    known, found = _known.get(module, ((), ()))
    if known != names:  # a method's program never changes, but methods may be added
        graphs = (cpp._get_method(name).inlined_graph for name in names)
        found = tuple(dict.fromkeys(each for graph in graphs for each in baked_into_graph(graph)))
        _known[module] = names, found
    return found


_known: WeakKeyDictionary[nn.Module, tuple[tuple[str, ...], tuple[Baked, ...]]] = WeakKeyDictionary()


def baked_into_graph(graph: Any) -> Iterator[Baked]:
    for kind in _CONSTANTS:
        for node in graph.findAllNodes(kind):
            yield from _baked_into_constant(node)
    for node in graph.findAllNodes("aten::device"):
        arguments = [each.toIValue() for each in node.inputs() if each.node().kind() in _CONSTANTS]
        if len(arguments) == len([*node.inputs()]):  # all are constants, none is read from an attribute
            yield from _baked_device(torch.device(*[argument for argument in arguments if argument is not None]), node)


_CONSTANTS = ("prim::Constant", "prim::ConstantMKLDNNTensor")


def _baked_into_constant(node: Any) -> Iterator[Baked]:
    kind = node.output().type().kind()
    if kind == "DeviceObjType":
        yield from _baked_device(node.output().toIValue(), node)
    elif kind == "TensorType":
        tensor = node.t("value")
        if not (_is_mixable(node.output()) and _is_harmless(node.output())):
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            what = f"a {shape} {str(tensor.dtype).removeprefix('torch.')} constant on {tensor.device}"
            yield Baked(what, tensor.device, _source_of(node))
    elif kind in _CONTAINERS:
        for tensor in _tensors_in(node.output().toIValue()):
            yield Baked(f"a constant container of tensors on {tensor.device}", tensor.device, _source_of(node))
    elif kind == "ClassType":  # quantized weights, packed for the CPU: torch gives no access to their bytes
        yield Baked(f"a constant {node.output().type()}", torch.device("cpu"), _source_of(node))


_CONTAINERS = {"ListType", "TupleType", "DictType"}


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each)


def _baked_device(device: torch.device, node: Any) -> Iterator[Baked]:
    for user in [use.user for use in node.output().uses()]:
        if device.type == "cpu" and _makes_mixable(user) and _is_harmless(user.output()):
            continue
        yield Baked(f"{user.kind().split('::')[-1]}(..., device='{device}')", device, _source_of(user))


# Zero-dimensional constants on the CPU, which torch mixes with tensors of any device. Tracing makes one of each number
# in a program.


def _is_mixable(value: Any) -> bool:
    node = value.node()
    if node.kind() == "prim::Constant":
        constant = node.t("value")  # toIValue() would turn some into numbers
        return bool(constant.dim() == 0 and constant.device.type == "cpu")
    return node.kind() == "prim::NumToTensor" or _makes_mixable(node)


def _makes_mixable(node: Any) -> bool:
    """Whether all tensors that an operation takes are such constants, so that its result is one too."""
    if node.kind() not in _MIXING | _PASSING:
        return False
    tensors = [value for value in node.inputs() if value.type().kind() == "TensorType"]
    return bool(tensors) and all(map(_is_mixable, tensors))


def _is_harmless(number: Any) -> bool:
    """Whether such a constant is used only where torch mixes devices."""
    for user in [use.user for use in number.uses()]:
        if user.kind() in _TO_NUMBER:
            continue
        if user.kind() not in _MIXING | _PASSING or (_makes_mixable(user) and not _is_harmless(user.output())):
            return False
    return True


_NUMBERS = ("Int", "Float", "Bool", "item", "IntImplicit", "FloatImplicit", "ScalarImplicit")
_TO_NUMBER = {f"aten::{name}" for name in _NUMBERS}
_PASSING = {f"aten::{name}" for name in ("to", "detach", "detach_", "lift_fresh", "alias", "clone")}
_BINARY = (
    *("add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "pow", "atan2"),
    *("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "where", "masked_fill"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
)
_MIXING = {f"aten::{name}{suffix}" for name in _BINARY for suffix in ("", "_")}


def _source_of(node: Any) -> str:
    """FILE:LINE of a node, or of the first node that uses it."""
    users = (use.user for use in node.output().uses()) if node.outputsSize() == 1 else ()
    for each in (node, *users):
        found = _SOURCE.search(each.sourceRange())
        if found:
            path, line = found.group(1) or found.group(3), found.group(2) or found.group(4)
            return f"{path.rsplit('/', 1)[-1]}:{line}"
    return ""


# The two forms that scripting and tracing write.
_SOURCE = re.compile(r'File "([^"]+)", line (\d+)|^(\S+)\((\d+)\):', re.MULTILINE)
