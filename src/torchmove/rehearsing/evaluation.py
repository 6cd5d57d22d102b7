"""Re-evaluates expressions of the program as on a machine with the device.

Covers only expressions that ask for a device, compare or choose, and those that create an autocast region or a gradient
scaler. Names are looked up among the variables; a value that depends on the device is re-evaluated as well.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import torch

from torchmove.rehearsing.provenance import is_program
from torchmove.rehearsing.runtime import simulated_type
from torchmove.rehearsing.sources import (
    ASKS,
    DEEP,
    Assigned,
    Reasons,
    Source,
    argument_of,
    called,
    default_of,
    family_of,
    parameters_of,
    scope_around,
)

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hpu|npu|gpu)$")
_PRECISION = {"autocast", "GradScaler"}
_MADE = {*_PRECISION, "nullcontext", "device", "bool", "str"}
_COMPARING: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


class CannotTell(Exception):
    """The expression cannot be evaluated without side effects, or a name has no value."""


class NeverCalled(CannotTell):
    """The value is a parameter of a function without calls."""


def is_candidate(value: Any, home: torch.device) -> bool:
    """Whether a value may depend on the device: another device or its name, a tensor type, or a switch that is off."""
    if isinstance(value, torch.device):
        return value.type != home.type
    if isinstance(value, type):
        return value.__module__ in ("torch", f"torch.{home.type}") and value.__name__.endswith("Tensor")
    return value is False or (type(value) is str and _DEVICE.match(value) is not None and value != home.type)


def on_device(value: Any, home: torch.device) -> Any:
    """The equivalent of a device, its name or a tensor type on a machine with the device."""
    bare = torch.device(home.type) if not home.index else home
    if value is None or isinstance(value, torch.device):
        return bare
    if isinstance(value, str):
        return str(bare)
    if isinstance(value, type):
        return simulated_type(value, home)
    return value


def is_for_the_cpu(value: Any, home: torch.device) -> bool:
    """Whether it replaces mixed precision on a CPU machine: None, nullcontext, a CPU region or scaler."""
    if isinstance(value, torch.autocast):
        return bool(value.device != home.type)
    if isinstance(value, functools.partial):
        return value.func is torch.autocast and home.type not in (*value.args, *value.keywords.values())
    is_nothing = value is None or value is nullcontext or isinstance(value, nullcontext)
    return is_nothing or (isinstance(value, torch.amp.GradScaler) and value._device != home.type)


def assigned_to(name: str, source: Source, scope: str) -> tuple[str, list[Assigned]]:
    """The scope that a variable resolves to, and its assignments in that scope."""
    while scope and not source.names.get((scope, name)) and not _is_parameter(name, source, scope):
        scope = scope_around(scope)
    return scope, source.names.get((scope, name), [])


def _is_parameter(name: str, source: Source, scope: str) -> bool:
    return scope in source.functions and name in parameters_of(source.functions[scope])


def _is_of_cpu(value: Any, home: torch.device) -> bool:
    return value.__module__ == "torch" if isinstance(value, type) else is_candidate(value, home)


_COUNTERS = (int, float, list, dict, set)  # values that may change without an assignment to the name


def makes_precision(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) and called(node) in _PRECISION for node in ast.walk(expression))


class Again:
    """Re-evaluates expressions as on a machine with the device.

    Attributes:
    off: re-created autocast regions and scalers that their expression disables.
    """

    def __init__(
        self, reasons: Reasons, home: torch.device, space_of: Callable[[Source], Mapping[str, Any]] = lambda _: {}
    ) -> None:
        """`space_of`: the variables of a file, with their values."""
        self.reasons, self.home, self.space_of = reasons, home, space_of
        self.off: list[Any] = []
        self._under_way: set[int] = set()  # ids of the assignments under evaluation

    def switch(self, assigned: list[Assigned], source: Source, space: Mapping[str, Any]) -> bool | None:
        """True if a switch would be on; None if it stays off or is unknown."""
        runs = [each for each in assigned if self._runs(each, source, space) is not False]
        return any(self.truth(each.value, source, each.scope, space) for each in runs) or None

    def _runs(self, assigned: Assigned, source: Source, space: Mapping[str, Any]) -> bool | None:
        """Whether the statement would run, given the conditions around it; None if unknown."""
        answers = {self.truth(test, source, assigned.scope, space) for test in assigned.tests}
        return False if False in answers else None if None in answers else True

    def truth(self, node: ast.expr, source: Source, scope: str, space: Mapping[str, Any]) -> bool | None:
        try:
            return bool(self.value(node, source, scope, space))
        except Exception:  # its names may have been rebound
            return None

    def stays(self, assigned: list[Assigned], source: Source, space: Mapping[str, Any]) -> bool:
        """Whether a chosen device is the CPU on every machine, because of a switch that is off or a later statement."""
        with suppress(Exception):  # its names may have been rebound
            return _is_of_cpu(self._by_statements(reversed(assigned), source, space), self.home)
        return False

    def is_cpu(self, device: ast.expr, source: Source, scope: str) -> bool:
        """Whether a chosen device is the CPU, or a chosen switch off, on every machine."""
        with suppress(Exception):  # its names may have been rebound
            return _is_of_cpu(self.value(device, source, scope, self.space_of(source)), self.home)
        return False

    def never_runs(self, assigned: Assigned, source: Source) -> bool:
        """Whether every machine skips a statement, because of a switch that nothing changes."""
        tests = (each for each in assigned.tests if not isinstance(each, ast.Constant))  # a constant marks a handler
        return any(self.is_off(each, source, assigned.scope) for each in tests)

    def is_off(self, test: ast.expr, source: Source, scope: str) -> bool:
        """Whether a test is false on every machine, given only values that nothing changes."""
        return self._is_settled(test, source, scope) and self.truth(test, source, scope, self.space_of(source)) is False

    def _is_settled(self, test: ast.expr, source: Source, scope: str) -> bool:
        """Whether the test reads only variables that are bound once, and not to a number or container."""
        space = self.space_of(source)
        for name in {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}:
            found_in, assigned = assigned_to(name, source, scope)
            is_given = name == "self" or _is_parameter(name, source, found_in)
            is_known = is_given or name in source.modules or name in source.returns
            if not is_known and (len(assigned) != 1 or type(space.get(name)) in _COUNTERS):
                return False
        return True

    def _by_statements(
        self, statements: Iterable[Assigned], source: Source, space: Mapping[str, Any], deep: int = 0
    ) -> Any:
        """The value that the first of these statements that runs assigns or returns."""
        for each in statements:
            runs = self._runs(each, source, space)
            if runs is None:
                break
            if runs:
                return self.value(each.value, source, each.scope, space, deep + 1)
        raise CannotTell

    def precision(self, assigned: list[Assigned], source: Source, space: Mapping[str, Any]) -> Any:
        """The autocast region or scaler that a variable would have; None if it has none or this is unknown."""
        for each in reversed(assigned):
            if makes_precision(each.value) and self._runs(each, source, space):
                with suppress(Exception):  # its names may have been rebound
                    made = self.value(each.value, source, each.scope, space)
                    return None if is_for_the_cpu(made, self.home) else made
        return None

    def value(self, node: ast.expr, source: Source, scope: str, space: Mapping[str, Any], deep: int = 0) -> Any:
        """Evaluate an expression. Raises CannotTell, or any error of the evaluation."""

        def of(inner: ast.expr) -> Any:
            return self.value(inner, source, scope, space, deep + 1)

        if deep > DEEP:
            raise CannotTell
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id, source, scope, space, deep)
        if isinstance(node, ast.Attribute) and _is_own(node) and "self" not in space:
            return self._own(node.attr, source, scope, space, deep)
        if isinstance(node, ast.Attribute):
            return self._attribute(of(node.value), node.attr, source, space)
        if isinstance(node, ast.Subscript):
            holder, key = of(node.value), of(node.slice)
            return self._kept(holder[key], str(key), holder, source, space)
        if isinstance(node, ast.List):
            return [of(each) for each in node.elts]
        if isinstance(node, ast.Dict) and None not in node.keys:
            return {of(key): of(value) for key, value in zip(node.keys, node.values, strict=True) if key}
        if isinstance(node, ast.IfExp):
            return of(node.body) if of(node.test) else of(node.orelse)
        if isinstance(node, ast.BoolOp):
            return self._joined(node, of)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not of(node.operand)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return _COMPARING[type(node.ops[0])](of(node.left), of(node.comparators[0]))
        if isinstance(node, ast.Call):
            if called(node) in source.returns and called(node) not in ASKS:
                return self._by_statements(source.returns[called(node)], source, space, deep + 1)
            return self._called(node, of)
        raise CannotTell

    def _own(self, name: str, source: Source, scope: str, space: Mapping[str, Any], deep: int) -> Any:
        """The value that the methods of a class assign to an attribute of `self`."""
        owners = {base for each in scope.split(".") for base in family_of(source, each)}
        own = [each for each in source.attributes.get(name, ()) if each.owner in owners]
        return self._by_statements(reversed(own), source, space, deep + 1)

    def _attribute(self, holder: Any, name: str, source: Source, space: Mapping[str, Any]) -> Any:
        found = getattr(holder, name)
        if isinstance(holder, types.ModuleType) and is_program(getattr(holder, "__file__", None) or "<"):
            return self._named(name, self.reasons.source(str(holder.__file__)), "", vars(holder), 0)
        if isinstance(found, torch.device) and name not in getattr(holder, "__dict__", {}):
            raise CannotTell  # the device of a tensor, which is not known here
        return self._kept(found, name, holder, source, space)

    def _kept(self, found: Any, name: str, holder: Any, source: Source, space: Mapping[str, Any]) -> Any:
        """The value that an attribute or a key would have on a machine with the device."""
        assigned = source.attributes.get(name, [])
        if not is_candidate(found, self.home) or self.reasons.of_attribute(source, name) is None:
            return found
        owners = {each.__name__ for each in type(holder).__mro__[:-1]}
        own = [each for each in assigned if each.owner in owners]
        space = {**space, "self": holder}
        if not own and found is not False and len(assigned) > 1:  # unknown which assignment applies
            return on_device(found, self.home)
        return self._there(found, own or assigned, source, space)

    def _joined(self, node: ast.BoolOp, of: Callable[[ast.expr], Any]) -> Any:
        found: Any = None
        for each in node.values:
            found = of(each)
            if bool(found) is isinstance(node.op, ast.Or):
                return found
        return found

    def _called(self, node: ast.Call, of: Callable[[ast.expr], Any]) -> Any:
        name = called(node)
        if name in ASKS:
            return {"device_count": 1, "current_accelerator": torch.device(self.home.type)}.get(name, True)
        if name not in _MADE or any(each.arg is None for each in node.keywords):
            raise CannotTell
        given, named = [*map(of, node.args)], {each.arg: of(each.value) for each in node.keywords if each.arg}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the missing device
            made = of(node.func)(*given, **named)
        if named.get("enabled") is False:
            self.off.append(made)
        return made

    def _named(self, name: str, source: Source, scope: str, space: Mapping[str, Any], deep: int) -> Any:
        scope, assigned = assigned_to(name, source, scope)
        if name != "self" and not assigned and _is_parameter(name, source, scope):
            return self._given(name, source, scope, space, deep)
        values, read = space, source
        source, assigned = (source, assigned) if scope else self.reasons.bound(source, name)
        if source is not read:  # bound in another file
            space = self.space_of(source)
        if name not in values:
            if len(assigned) != 1:
                return _builtin(name)
            return self.value(assigned[0].value, source, assigned[0].scope, space, deep + 1)
        value = values[name]
        if value is None and self.reasons.is_current_accelerator(read, ast.Name(name, ast.Load()), scope):
            return on_device(value, self.home)
        may_be = is_candidate(value, self.home) or isinstance(value, (list, tuple, dict))
        if not may_be or self.reasons.of_name(read, name, scope) is None:
            return value
        return self._there(value, assigned, source, space)

    def _given(self, name: str, source: Source, scope: str, space: Mapping[str, Any], deep: int) -> Any:
        """The value that the calls of a function pass for a parameter, if they all agree."""
        function, values = source.functions[scope], []
        for caller, call, at in self.reasons.calls_of(source, scope):
            given = argument_of(call, function, name)
            if at == scope:  # a recursive call
                continue
            where = (caller, at) if given is not None else (source, scope_around(scope))
            node = default_of(function, name) if given is None else given
            if node is None or deep > DEEP:
                raise CannotTell
            with suppress(NeverCalled):
                values.append(self.value(node, *where, self.space_of(where[0]), deep + 1))
        if values and all(each == values[0] for each in values):
            return values[0]
        if name in space and not values:
            return space[name]
        raise CannotTell if values else NeverCalled

    def _there(self, value: Any, assigned: list[Assigned], source: Source, space: Mapping[str, Any]) -> Any:
        """The value on a machine with the device. Unknown for containers, and for a switch that depends on itself."""
        is_under_way = id(assigned) in self._under_way
        if isinstance(value, (list, tuple, dict)) or (is_under_way and value is False):
            raise CannotTell
        if is_under_way:
            return on_device(value, self.home)
        self._under_way.add(id(assigned))
        try:
            if value is False:
                return bool(self.switch(assigned, source, space))
            return value if self.stays(assigned, source, space) else on_device(value, self.home)
        finally:
            self._under_way.discard(id(assigned))


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _builtin(name: str) -> Any:
    if name not in ("bool", "str"):
        raise CannotTell
    return {"bool": bool, "str": str}[name]
