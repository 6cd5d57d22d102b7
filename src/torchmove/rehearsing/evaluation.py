"""Evaluates expressions of the program as on a machine with the device: their values, and the devices of their tensors.

Values: only of expressions that ask for a device, compare or choose, and those that create an autocast region or a
gradient scaler. Names are looked up among the variables; a value that depends on the device is re-evaluated as well.

Devices: on a machine without the device all tensors are on the CPU, so their current device carries no information.
Instead, each expression is analyzed for the device of its tensors: what the program moved to a device, or created on
it, before the step. The role of its arguments depends on the callable: a factory without `device=` creates a CPU tensor
whatever its arguments; a function of tensors returns one on their device.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
import sys
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch

from torchmove.rehearsing.provenance import Line, is_program
from torchmove.rehearsing.runtime import simulated_type
from torchmove.rehearsing.sources import (
    ASKS,
    COMPREHENSIONS,
    DEEP,
    ITSELF,
    Assigned,
    Reasons,
    Source,
    argument_of,
    called,
    default_of,
    family_of,
    is_accelerator,
    loops_of,
    owner_of,
    parameters_of,
    result_of,
    scope_around,
    vararg_of,
)

# ---------------------------------------------------------------- values of expressions

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


def is_count(value: Any, assigned: Iterable[Assigned]) -> bool:
    """Is it a number of devices on a machine without any: `n_gpu = torch.cuda.device_count()`?"""
    return type(value) is int and not value and any(map(_counts_devices, assigned))


def _counts_devices(assigned: Assigned) -> bool:
    calls = (node for node in ast.walk(assigned.value) if isinstance(node, ast.Call))
    return any(called(each) == "device_count" for each in calls)


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

    def count(self, assigned: list[Assigned], source: Source, space: Mapping[str, Any]) -> Any:
        """The number of devices that a variable would have; None if it is unknown or stays 0."""
        with suppress(Exception):  # its names may have been rebound
            return self._by_statements(reversed(assigned), source, space) or None
        return None

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
            function = result_of(source, node, scope)
            if function in source.returns and called(node) not in ASKS:
                return self._by_statements(source.returns[function], source, space, deep + 1)
            return self._called(node, of)
        raise CannotTell

    def _own(self, name: str, source: Source, scope: str, space: Mapping[str, Any], deep: int) -> Any:
        """The value that the methods of a class assign to an attribute of `self`."""
        owners = {base for each in scope.split(".") for base in family_of(source, each)}
        own = [each for each in source.attributes.get(name, ()) if each.owner in owners]
        return self._by_statements(reversed(own), source, space, deep + 1)

    def _attribute(self, holder: Any, name: str, source: Source, space: Mapping[str, Any]) -> Any:
        found = getattr(holder, name)
        if holder is torch.version and name == self.home.type:  # None in a build for the CPU
            return found or "of the device"
        if isinstance(holder, types.ModuleType) and is_program(getattr(holder, "__file__", None) or "<"):
            return self._named(name, self.reasons.source(str(holder.__file__)), "", vars(holder), 0)
        if isinstance(found, torch.device) and name not in getattr(holder, "__dict__", {}):
            raise CannotTell  # the device of a tensor, which is not known here
        return self._kept(found, name, holder, source, space)

    def _kept(self, found: Any, name: str, holder: Any, source: Source, space: Mapping[str, Any]) -> Any:
        """The value that an attribute or a key would have on a machine with the device."""
        assigned = source.attributes.get(name, [])
        if is_count(found, assigned):
            return self.count(assigned, source, {**space, "self": holder}) or found
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
            if _asks_another(node.func, self.home):
                return 0 if name == "device_count" else False
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
        if is_count(value, assigned):
            return self.count(assigned, source, space) or value
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


def _asks_another(func: ast.expr, home: torch.device) -> bool:
    """Does it ask for another kind of device: `torch.backends.mps.is_available` where the device is cuda?"""
    kinds = {each.attr for each in ast.walk(func) if isinstance(each, ast.Attribute)} & {"mps", "xpu", "hpu", "npu"}
    return bool(kinds) and home.type not in kinds


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _builtin(name: str) -> Any:
    if name not in ("bool", "str"):
        raise CannotTell
    return {"bool": bool, "str": str}[name]


# ---------------------------------------------------------------- devices of the tensors of expressions

_STEPS = 150  # most steps to follow from expression to expression
_SENDING = {"to", "type", "type_as"}
_TO_THE_HOST = {"cpu", "numpy", "item", "tolist"}
_FACTORIES = {
    *("zeros", "ones", "empty", "full", "eye", "arange", "linspace", "logspace", "tensor", "from_numpy", "load"),
    *("rand", "randn", "randint", "randperm", "empty_strided", "normal", "sparse_coo_tensor", "Generator"),
}
# The torch classes that hold or copy the modules and tensors they are given; the others create new tensors.
_WRAPPERS = {
    *("TensorDataset", "Subset", "ConcatDataset", "StackDataset", "DataLoader"),
    *("Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Parameter", "Variable", "Buffer"),
    *("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "AveragedModel", "SWALR"),
}
_PREPARING = {"prepare", "prepare_model", "setup", "setup_module"}  # methods of accelerate and Lightning objects
_METADATA = re.compile(r"(shape|size|device|dtype|ndim|layout|training)$|.*(features|channels|_dim|_size)$|(num|n)_")


class Where(NamedTuple):
    """The context of an expression: its file and scope, and the conditions and loops around it."""

    source: Source
    scope: str
    owner: str
    tests: tuple[ast.expr, ...]
    position: tuple[int, int]
    loops: dict[str, ast.expr]
    default: ast.expr | None = None  # the default device
    is_tensor: bool = False  # the value is a tensor: `x.to(device)` without an assignment has no effect

    @classmethod
    def of(cls, source: Source, assigned: Assigned) -> Where:
        default = assigned.default or (source.set_default if assigned.scope else None)
        return cls(source, assigned.scope, assigned.owner, assigned.tests, _position(assigned.value), {}, default)

    @classmethod
    def of_argument(cls, source: Source, node: ast.expr, scope: str) -> Where:
        return cls(source, scope, owner_of(source, scope), (), _position(node), source.within.get(node, {}))


class Placements:
    """Finds the line that chose the device of a value; None means the CPU or unknown."""

    def __init__(self, reasons: Reasons, again: Again) -> None:
        self.reasons, self.again = reasons, again
        self.switched_off: set[ast.AST] = set()  # choices of a device that give the CPU on every machine
        self._known: dict[tuple[Any, ...], Line | None] = {}  # results, by expression and context
        self._of_objects: dict[frozenset[int], tuple[dict[Any, Any], dict[Any, Any]]] = {}  # results, by object
        self._under_way: set[tuple[Any, ...]] = set()  # expressions under analysis
        self._is_cut = False  # an expression depends on itself, so a None is not final
        self._led_to: set[tuple[Any, ...]] = set()  # the expressions in `_under_way` that were reached again
        # For each expression cut short by a cycle, the expressions it reached: while they are in `_under_way`, a new
        # analysis gives the same result.
        self._open: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}

    @contextmanager
    def of_object(self, made_by: Mapping[str, ast.Call]) -> Iterator[None]:
        """Within the context, read each class as created by its call in `made_by`."""
        key, before = frozenset(map(id, made_by.values())), (self._known, self._open)
        self._known, self._open = self._of_objects.setdefault(key, ({}, {})) if made_by else before
        try:
            with self.reasons.of_object(made_by) if made_by else nullcontext():
                yield
        finally:
            self._known, self._open = before

    def sent(
        self, source: Source, assigned: Iterable[Assigned], deep: int = 0, *, is_tensor: bool = False
    ) -> Line | None:
        """The line that moved a variable or an attribute; the last assignment in a scope takes precedence."""
        by_scope: defaultdict[str, list[Assigned]] = defaultdict(list)
        for each in assigned:
            if not (is_tensor and each.is_sent) and not self.again.never_runs(each, source):
                by_scope[each.scope].append(each)
        return next(filter(None, (self._sent_in(source, each, deep, is_tensor) for each in by_scope.values())), None)

    def _sent_in(self, source: Source, assigned: list[Assigned], deep: int, is_tensor: bool) -> Line | None:
        for each in sorted(assigned, key=lambda each: _position(each.value), reverse=True) if deep <= _STEPS else ():
            found = self.placed(each.value, Where.of(source, each)._replace(is_tensor=is_tensor), deep + 1)
            if found is not None or not (each.is_sent or each.tests) or _brings_back(each):
                return found
        return None

    def _returned_by(
        self, source: Source, scope: str, deep: int, part: ast.expr | None = None, *, is_tensor: bool = False
    ) -> Line | None:
        """The line that chose the device of a function's result, in all branches or in one that asks for the device.

        `part`: the index or key, for one value of a tuple or a dict.
        """
        sent: Line | None = None
        for each in source.returns.get(scope, ()):
            where = Where.of(source, each)._replace(is_tensor=is_tensor)
            found = self._of_part(each.value, part, where, deep) if part else self.placed(each.value, where, deep)
            if found and any(self.reasons.of(source, test, scope) for test in each.tests):
                return found
            if found is None and not isinstance(each.value, ast.Constant) and not self._is_cut:
                return None
            sent = sent or found
        return sent

    def _of_part(self, node: ast.expr, index: ast.expr, where: Where, deep: int) -> Line | None:
        """The line for one element of a tuple, list, dict or function result."""
        key = getattr(index, "value", None)
        if isinstance(node, (ast.Tuple, ast.List)) and type(key) is int and -len(node.elts) <= key < len(node.elts):
            return self.placed(node.elts[key], where, deep)
        if isinstance(node, ast.Dict):
            members = [
                one for name, one in zip(node.keys, node.values, strict=True) if getattr(name, "value", ...) == key
            ]
            return self._of_any(members, where, deep)
        if isinstance(node, ast.Call):
            owner = f"{where.owner}." if isinstance(node.func, ast.Attribute) else ""
            if f"{owner}{called(node)}" in where.source.returns:
                return self._returned_by(where.source, f"{owner}{called(node)}", deep + 1, index)
        if isinstance(node, ast.Name) and node.id not in where.loops and deep <= _STEPS:
            scope = where.scope if where.source.names.get((where.scope, node.id)) else ""
            before = [each for each in where.source.names.get((scope, node.id), ()) if not each.is_sent]
            before = [each for each in before if scope != where.scope or end_of(each.value) <= where.position]
            if before:
                found = self._of_part(before[-1].value, index, Where.of(where.source, before[-1]), deep + 1)
                elements = where.source.names.get((scope, f"{node.id}[]"), ()) if scope else ()
                return found or self.sent(where.source, elements, deep + 1)
        return self.placed(node, where, deep)

    def part(self, source: Source, name: str, key: object) -> Line | None:
        """The line for an element of a module variable, from the last statement that bound the variable."""
        end = Where(source, "", "", (), (sys.maxsize, 0), {})
        return self._of_part(ast.Name(name, ast.Load()), ast.Constant(key), end, 0)  # type: ignore[arg-type]

    def given(self, source: Source, argument: ast.expr, scope: str) -> Line | None:
        """The line that chose the device of a call's argument."""
        return self.placed(argument, Where.of_argument(source, argument, scope))

    def placed(self, node: ast.AST | None, where: Where, deep: int = 0) -> Line | None:
        """The line that chose the device of an expression's tensors."""
        if node is None or deep > _STEPS:
            return None
        key = (node, where.source.file, *where[1:5], *where.loops.items(), where.is_tensor)
        if key in self._known:
            return self._known[key]
        led_to = {key} if key in self._under_way else self._open.get(key)
        if led_to is not None and led_to <= self._under_way:
            self._is_cut = True
            self._led_to |= led_to
            return None
        self._under_way.add(key)
        was_cut, self._is_cut = self._is_cut, False
        before, self._led_to = self._led_to, set()
        found = self._placed(node, where, deep)
        self._under_way.discard(key)
        self._led_to.discard(key)
        if found is not None or not self._is_cut or not self._under_way:
            self._known[key] = found
        else:
            self._open[key] = self._led_to
        self._is_cut = bool(self._under_way) and (was_cut or (self._is_cut and found is None))
        self._led_to = before | self._led_to
        return found

    def _placed(self, node: ast.AST, where: Where, deep: int) -> Line | None:
        if isinstance(node, ast.Call):
            return self._by_call(node, where, deep + 1)
        if isinstance(node, ast.Name):
            return self._of_name(node, where, deep + 1)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, where, deep + 1)
        if isinstance(node, COMPREHENSIONS):
            return self._of_comprehension(node, where, deep + 1)
        if isinstance(node, ast.IfExp):
            where = where._replace(tests=(*where.tests, node.test))
            return self._of_any([node.body, node.orelse], where, deep)
        where = where._replace(is_tensor=False)
        if isinstance(node, ast.Subscript):
            return self._of_part(node.value, node.slice, where, deep + 1)
        return self._of_any(ast.iter_child_nodes(node), where, deep)

    def _of_any(self, nodes: Iterable[ast.AST], where: Where, deep: int) -> Line | None:
        return next(filter(None, (self.placed(each, where, deep + 1) for each in nodes)), None)

    def _of_name(self, node: ast.Name, where: Where, deep: int) -> Line | None:
        if node.id in where.loops:
            return self.placed(where.loops[node.id], where._replace(loops={}), deep)
        source, scope = where.source, where.scope
        while True:
            assigned = source.names.get((scope, node.id), [])
            if scope == where.scope:  # only what was assigned before the variable is read
                assigned = [each for each in assigned if end_of(each.value) <= where.position]
            if assigned:
                found = self.sent(source, assigned, deep, is_tensor=where.is_tensor)
                return found or self.sent(source, source.names.get((scope, f"{node.id}[]"), ()), deep)
            if (scope, node.id) in source.iterated:
                return self.placed(source.iterated[scope, node.id], where._replace(scope=scope, loops={}), deep)
            if scope in source.functions and node.id in parameters_of(source.functions[scope]):
                return self._of_parameter(source, scope, node.id, deep, where.is_tensor)
            if scope in source.functions and node.id == vararg_of(source.functions[scope]):
                return self._of_vararg(source, scope, deep)
            if not scope:
                return self._of_import(source, node.id, deep, where.is_tensor)
            scope = scope_around(scope)

    def _of_parameter(self, source: Source, scope: str, name: str, deep: int, is_tensor: bool) -> Line | None:
        """The line for a parameter, if the arguments of all calls are on a device; recursive calls are skipped."""
        found: list[Line | None] = []
        for caller, given, at in self.reasons.arguments(source, scope, name):
            was_cut, self._is_cut = self._is_cut, False
            line = self.placed(given, Where.of_argument(caller, given, at)._replace(is_tensor=is_tensor), deep)
            found += [] if line is None and self._is_cut else [line]
            self._is_cut = self._is_cut or was_cut
        return found[0] if found and all(found) else None

    def _of_vararg(self, source: Source, scope: str, deep: int) -> Line | None:
        """The line for `*args`, if every call passes at least one argument on a device."""
        skipped = len(source.functions[scope].args.args) - (parameters_of(source.functions[scope])[:1] == ["self"])
        found = [
            self._of_any(call.args[skipped:], Where.of_argument(caller, call, at), deep)
            for caller, call, at in self.reasons.calls_of(source, scope)
        ]
        return found[0] if found and all(found) else None

    def _of_import(self, source: Source, name: str, deep: int, is_tensor: bool) -> Line | None:
        module, original = self.reasons.imported(source, name)
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None or not is_program(file):
            return None
        other = self.reasons.source(file)
        return self.sent(other, other.names.get(("", original), ()), deep, is_tensor=is_tensor)

    def _of_attribute(self, node: ast.Attribute, where: Where, deep: int) -> Line | None:
        if _METADATA.match(node.attr):
            return None
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            every = where.source.attributes.get(node.attr, ())
            own = [each for each in every if each.owner == where.owner and _position(each.value) != where.position]
            return self.sent(where.source, own, deep)
        return self.placed(node.value, where, deep)

    def _of_comprehension(self, node: ast.expr, where: Where, deep: int) -> Line | None:
        where = where._replace(loops={**where.loops, **loops_of(node)})
        return self.placed(getattr(node, "elt", getattr(node, "value", None)), where, deep)

    # ------------------------------------------------------------ calls

    def _by_call(self, node: ast.Call, where: Where, deep: int) -> Line | None:
        name = called(node)
        if name in _TO_THE_HOST:
            return None
        asked = self._asked(node, name, where)
        found = next(filter(None, (self._decided(each, where, deep) for each in asked)), None)
        if found is None and not asked and _names_an_accelerator(node):
            found = self._under_conditions(where, deep)
        if found is not None:
            return found
        if name in _PREPARING and isinstance(node.func, ast.Attribute):
            return self._of_preparer(node.func.value, where)
        if name == "deepcopy" and node.args and isinstance(node.args[0], ast.Name):
            sendings = where.source.sendings.get((where.scope, node.args[0].id), ())
            found = self.sent(where.source, [each for each in sendings if end_of(each.value) <= where.position], deep)
        found = found or self._returned(node, name, where, deep) or self._sent_in_place(name, where, deep)
        where = where._replace(is_tensor=False)
        if found is not None or (asked and name in _SENDING):
            return found
        if where.default is not None and self._makes(node, name, where.source):
            return self._decided(where.default, where, deep)
        return self._of_any(self._followed(node, name, where), where, deep)

    def _under_conditions(self, where: Where, deep: int) -> Line | None:
        """The line that decided to call a function whose statements fail without the device."""
        conditions = self.reasons.conditions_of(where.source, where.scope) if where.scope and deep <= _STEPS else ()
        for caller, test, at in conditions:
            found = self._decided(test, Where.of_argument(caller, test, at)._replace(tests=(test,)), deep + 1)
            if found is not None:
                return found
        return None

    def _sent_in_place(self, name: str, where: Where, deep: int) -> Line | None:
        """The line that moves the argument of a function without a result: `def send(model, device): ...`."""
        function = where.source.functions.get(name)
        if function is None or where.source.returns.get(name):
            return None
        given = [*parameters_of(function), *([function.args.vararg.arg] if function.args.vararg else ())]
        for each in given:
            for own in (each, f"{each}[]"):
                sent = [one for one in where.source.names.get((name, own), ()) if one.is_sent]
                found = self.sent(where.source, sent, deep)
                if found is not None:
                    return found
        return None

    def _of_preparer(self, node: ast.expr, where: Where) -> Line | None:
        """The line that created the library object of `accelerator.prepare` or `self.fabric.setup`, with its device."""
        if isinstance(node, ast.Name):
            return self.reasons.made_by_library(where.source, node.id, where.scope)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            if self.reasons.is_inherited(where.source, node, where.scope):
                return Line(where.source.file, node.lineno)
            own = [each for each in where.source.attributes.get(node.attr, ()) if each.owner == where.owner]
            return next(filter(None, (self.reasons.by_library(where.source, each) for each in own)), None)
        return None

    def _asked(self, node: ast.Call, name: str, where: Where) -> list[ast.expr]:
        """The expressions in a call that give the device of its result."""
        asked = [each.value for each in node.keywords if each.arg in ("device", "map_location")]
        if name == "Generator" or (name in _SENDING and isinstance(node.func, ast.Attribute)):
            asked += node.args
        elif name == "cuda":
            asked += where.tests
        elif isinstance(node.func, ast.Name) and self._is_alias(where.source, name, where.scope):
            asked.append(node.func)
        # A literal device exists on this machine, as the statement has not failed, so nothing chose it.
        return [device for device in asked if not isinstance(device, ast.Constant)]

    def _stays(self, device: ast.expr, where: Where) -> bool:
        """Whether a device expression or condition gives the CPU on every machine, because a switch is off."""
        if device in where.tests:
            return self.again.is_off(device, where.source, where.scope)
        if isinstance(device, ast.Name):
            scope, assigned = assigned_to(device.id, where.source, where.scope)
            before = [each for each in assigned if scope != where.scope or end_of(each.value) <= where.position]
            if before:
                return self.again.stays(before, where.source, self.again.space_of(where.source))
        return self.again.is_cpu(device, where.source, where.scope)

    def _decided(self, device: ast.expr, where: Where, deep: int) -> Line | None:
        """The line that chose a device; for `x.device`, the line that chose the device of x."""
        found = self.reasons.of(where.source, device, where.scope)
        if found is not None and self._stays(device, where):
            self.switched_off.add(device)
            return None
        if found is not None or deep > _STEPS:
            return found
        if isinstance(device, ast.Attribute) and device.attr == "device":
            return self.placed(device.value, where, deep)
        if isinstance(device, ast.Name):
            before = where.source.names.get((where.scope, device.id)) or where.source.names.get(("", device.id), [])
            if before and isinstance(before[-1].value, ast.Attribute) and before[-1].value.attr == "device":
                return self._decided(before[-1].value, Where.of(where.source, before[-1]), deep + 1)
        return self.placed(device, where, deep)

    def _makes(self, node: ast.Call, name: str, source: Source) -> bool:
        """Whether the call creates tensors on the default device."""
        return name in _FACTORIES or name in source.classes or (name[:1].isupper() and _is_torchs(source, node.func))

    def _followed(self, node: ast.Call, name: str, where: Where) -> list[ast.expr]:
        """The expressions whose device the result has: the object whose method is called, or the arguments."""
        source = where.source
        given = [*node.args, *(each.value for each in node.keywords)]
        is_method = isinstance(node.func, ast.Attribute) and not _is_of_a_module(source, node.func)
        if is_method and isinstance(node.func, ast.Attribute):
            its = node.func.value
            return [*given, its] if self._of_preparer(its, where) else [its]
        if name in _FACTORIES or name in source.classes or name in source.functions:
            return []
        if name[:1].isupper() and _is_torchs(source, node.func) and name not in _WRAPPERS:
            return given if name.endswith("Loss") or hasattr(torch.distributions, name) else []
        return given

    def _returned(self, node: ast.Call, name: str, where: Where, deep: int) -> Line | None:
        """The line for the result of a function of the file, or of one that it imports."""
        source = where.source
        if name in source.returns:
            return self._returned_by(source, name, deep, is_tensor=where.is_tensor)
        method = result_of(source, node, where.scope)
        if method in source.returns:
            return self._returned_by(source, method, deep, is_tensor=where.is_tensor)
        module, original = self.reasons.imported(source, name)
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None or not is_program(file):
            return None
        return self._returned_by(self.reasons.source(file), original, deep, is_tensor=where.is_tensor)

    def _is_alias(self, source: Source, name: str, scope: str) -> bool:
        """Whether it is an alias of a tensor type or a lambda: `Tensor = torch.cuda.FloatTensor if cuda else ...`."""
        assigned = source.names.get((scope, name)) or source.names.get(("", name), [])
        return any(
            isinstance(inner, ast.Lambda) or (isinstance(inner, ast.Attribute) and inner.attr.endswith("Tensor"))
            for each in assigned
            for inner in ast.walk(each.value)
        )


def _names_an_accelerator(call: ast.Call) -> bool:
    """Is it `x.cuda()` or `x.to("cuda")`?"""
    given = [each.value for each in call.args if isinstance(each, ast.Constant)]
    named = called(call) == "to" and any(is_accelerator(each) for each in given)
    return isinstance(call.func, ast.Attribute) and (called(call) == "cuda" or named)


def is_made_on_cpu(value: ast.expr) -> bool:
    """Whether it is a factory call without a device: `torch.rand(4)`, `torch.rand(4).float()`."""
    if not isinstance(value, ast.Call) or any(each.arg in ("device", None) for each in value.keywords):
        return False
    inner = value.func.value if isinstance(value.func, ast.Attribute) else None
    return called(value) in _FACTORIES or (
        inner is not None and called(value) not in _SENDING and is_made_on_cpu(inner)
    )


def _brings_back(each: Assigned) -> bool:
    """Whether the statement moves to the CPU, as in `model.cpu()`."""
    calls = [node for node in ast.walk(each.value) if isinstance(node, ast.Call)] if each.is_sent else []
    return any(called(call) == "cpu" or (called(call) == "to" and _names_the_cpu(call)) for call in calls)


def _names_the_cpu(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and str(call.args[0].value).startswith("cpu")


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def end_of(node: ast.expr) -> tuple[int, int]:
    """The position from which an assignment is in effect: in `model = Wrap(model)` the argument is the old value."""
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def sent_itself(source: Source, owners: Iterable[str]) -> list[Assigned]:
    """The statements in the classes of an object that move it as a whole, such as `self.to(device)`."""
    return [each for each in source.attributes.get(ITSELF, ()) if each.owner in owners]


def _is_of_a_module(source: Source, func: ast.Attribute) -> bool:
    """Whether it is a function of a module or class, such as `torch.cat`, rather than a method of an imported value."""
    root: ast.expr = func
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or root.id not in source.modules:
        return False
    module, original = source.imports.get(root.id, ("", ""))
    imported = getattr(sys.modules.get(module), original, None) if module else None
    return imported is None or isinstance(imported, (type, types.ModuleType))


def _is_torchs(source: Source, func: ast.expr) -> bool:
    root = func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and source.modules.get(root.id, "").partition(".")[0] == "torch"
