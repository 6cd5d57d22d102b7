"""TorchScript: scripted or traced modules and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchmove.internals.scripted import (
    Baked,
    attributes_of,
    baked_into,
    baked_into_graph,
    module_of_method,
    scripted_within,
)
from torchmove.internals.stored import ATOMS
from torchmove.surveying.paths import ATTRIBUTE, ITEM, Child, Children, Diagnostic, Reader


def read_module(module: Any) -> Iterator[Child | Children | Diagnostic]:
    scripted = scripted_within(module)
    stored = vars(scripted)
    if "_c" in stored:
        yield from _constants(baked_into(module))
        yield from _read_cpp(scripted)
    # Hooks, and attributes that were set on the Python objects only.
    for own in {id(each): vars(each) for each in (scripted, module)}.values():
        for name, value in own.items():
            if name not in _CPP and type(value) not in ATOMS and type(value).__name__ != "ScriptMethod":
                yield Child(ATTRIBUTE, name, value)


def _read_cpp(scripted: Any) -> Iterator[Child | Children]:
    stored = vars(scripted)
    parameters, buffers = dict(stored["_parameters"].items()), dict(stored["_buffers"].items())
    yield Children(ATTRIBUTE, parameters, "parameter")
    yield Children(ATTRIBUTE, buffers, "buffer")
    for name, child in stored["_modules"].items():
        yield Child(ITEM, int(name), child) if name.isdecimal() else Child(ATTRIBUTE, name, child)
    for name, value in attributes_of(scripted).items():
        if name not in parameters and name not in buffers:
            yield Child(ATTRIBUTE, name, value)


_CPP = {"_c", "_parameters", "_buffers", "_modules", "_concrete_type", "_actual_script_module"}


def read_method(method: Any) -> Iterator[Child]:
    yield Child(ATTRIBUTE, "owner", module_of_method(method))


def read_function(function: Any) -> Iterator[Diagnostic]:
    """A scripted function. Mostly it has no constants, and nothing to move."""
    yield from _constants(baked_into_graph(function.inlined_graph))


def _constants(found: Iterable[Baked]) -> Iterator[Diagnostic]:
    """A diagnostic for each device that constants are on."""
    each = list(found)
    for device in dict.fromkeys(one.device for one in each):
        here = [one for one in each if one.device == device]
        more = f" ... and {len(here) - 1} more" if len(here) > 1 else ""
        yield Diagnostic(
            "R022", f"its TorchScript program contains {here[0]}{more}, which cannot move", _REMEDY, device
        )


_REMEDY = (
    "move the original module, then script or trace it again; in scripted code, device=x.device and registered buffers "
    "do not become constants"
)

TABLE: dict[type | str, Reader] = {
    "torch.jit._script:ScriptModule": read_module,
    torch.jit.ScriptFunction: read_function,
    "torch:ScriptMethod": read_method,
}
