"""Collects what the statements of a file assign, and finds the one that chose a device.

Works on the syntax tree. `torch.device("cuda" if torch.cuda.is_available() else "cpu")` asks for a device; other values
depend on it through a name, a call, a default or an attribute. The first parameter of a method is read as `self`,
whatever its name.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torchmove.rehearsing.provenance import Line, is_installed, is_program

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_RECEIVER = {"staticmethod", "classmethod"}


def with_self(tree: ast.Module) -> ast.Module:
    """Rename the first parameter of each method to `self`, and return the tree."""
    for kind in ast.walk(tree):
        for method in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(method, _FUNCTIONS):
                _rename(method)
    return tree


def _rename(method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    first = next(iter((*method.args.posonlyargs, *method.args.args)), None)
    decorators = {getattr(each, "id", "") for each in method.decorator_list}
    if first is None or first.arg in ("self", "cls") or decorators & _NO_RECEIVER:
        return
    inside = [*_within(method, first.arg)]
    if any(each.id == "self" for each in inside):  # the name is taken by another object
        return
    for each in inside:
        each.id = "self" if each.id == first.arg else each.id
    first.arg = "self"


def _within(function: ast.AST, name: str) -> Iterator[ast.Name]:
    """Yield the variables in a function, except in inner functions with a parameter of this name."""
    for each in ast.iter_child_nodes(function):
        if isinstance(each, ast.Name):
            yield each
        is_own = isinstance(each, (*_FUNCTIONS, ast.Lambda)) and name in _parameters(each)
        if not is_own:
            yield from _within(each, name)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


_ACCELERATOR = re.compile(r"(cuda|mps|xpu|hpu|npu|gpu)(:\d+)?$")
ASKS = {"is_available", "is_built", "current_accelerator", "device_count", "is_bf16_supported", "has_cuda"}
# Classes that choose a device and move the modules they are given.
_MOVERS = {"transformers.trainer.Trainer", "stable_baselines3.common.base_class.BaseAlgorithm"}
_SETTINGS = re.compile(r"(args|cfg|conf|config|hparams|hps|opts?|options|params|settings|flags)$", re.IGNORECASE)
DEEP = 12  # most references to follow from name to name
_BRIEF = 4  # references up to which a variable that refers to itself is looked up again


class Assigned(NamedTuple):
    """A value that a statement assigns to a name, with the conditions around the statement and its scope."""

    value: ast.expr
    tests: tuple[ast.expr, ...]
    scope: str
    owner: str = ""  # the class, for an attribute of `self` or of a class
    is_sent: bool = False  # an expression statement without assignment: `model.to(device)`
    default: ast.expr | None = None  # the default device, set by `with torch.device(...)` or `set_default_device(...)`


class Source:
    """The assignments of a file, by name, and its calls with their arguments."""

    def __init__(self, file: str, texts: dict[str, str]) -> None:
        """`texts`: the source text by file name; a notebook has several."""
        self.file = file
        self.cells: dict[ast.AST, str] = {}  # the file of each node, in a notebook
        self.names: defaultdict[tuple[str, str], list[Assigned]] = defaultdict(list)  # by scope and name
        self.attributes: defaultdict[str, list[Assigned]] = defaultdict(list)
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}  # by scope
        self.returns: defaultdict[str, list[Assigned]] = defaultdict(list)  # by the function's scope
        self.properties: defaultdict[str, list[str]] = defaultdict(list)  # the scopes of the properties, by name
        self.calls: defaultdict[str, list[tuple[ast.Call, str]]] = defaultdict(
            list
        )  # by the last part of the callable's name
        self.classes: dict[str, list[ast.expr]] = {}  # the base classes, by class name
        self.default: ast.expr | None = None  # the default device at the current statement
        self.set_default: ast.expr | None = None  # the default device that the file sets
        self.loops: dict[tuple[str, str], list[ast.expr]] = {}  # the elements of a loop, by scope and variable
        self.iterated: dict[tuple[str, str], ast.expr] = {}  # the iterable of each loop variable
        self.over: dict[tuple[str, str], ast.Name | ast.Attribute] = {}  # the container of each loop variable's values
        self.states_sent: list[tuple[str, ast.For]] = []  # optimizers whose state a loop moves
        self.sendings: defaultdict[tuple[str, str], list[Assigned]] = defaultdict(list)  # moves with a kept result
        self.conditions: defaultdict[ast.AST, list[ast.expr]] = defaultdict(list)  # the tests around each call
        self.within: dict[ast.expr, dict[str, ast.expr]] = {}  # by argument in a comprehension: its iterables
        self.imports: dict[str, tuple[str, str]] = {}
        self.globals: set[tuple[str, str]] = set()  # scopes, and the names they declare `global`
        self.stars: list[str] = []  # modules imported with `*`
        self.modules: dict[str, str] = {}  # the imported module by name, also for `from module import name`
        for each, tree in _trees(texts):
            self.cells |= dict.fromkeys(ast.walk(tree), each) if len(texts) > 1 else {}
            self._read(tree.body, "", "", ())

    def _read(self, body: Iterable[ast.stmt], scope: str, owner: str, tests: tuple[ast.expr, ...]) -> None:
        for each in body:
            self._read_one(each, scope, owner, tests)

    def _read_with(self, node: ast.With | ast.AsyncWith, scope: str, owner: str, tests: tuple[ast.expr, ...]) -> None:
        """Read a `with` statement; the body of `with torch.device(...)` has that default device."""
        contexts = [each.context_expr for each in node.items]
        self._read_expressions(contexts, scope)
        before = self.default
        names = [each for each in contexts if isinstance(each, ast.Name) or _makes_a_device(each)]
        self.default = names[0] if names else before
        self._read(node.body, scope, owner, tests)
        self.default = before

    def _read_one(self, node: ast.stmt, scope: str, owner: str, tests: tuple[ast.expr, ...]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = _inner(scope, node.name, in_class=owner != "" and scope.split(".")[-1] == owner)
            self.functions[inner] = node
            if any(_last_name(each) in ("property", "cached_property") for each in node.decorator_list):
                self.properties[node.name].append(inner)
            self._read_expressions([*node.args.defaults, *filter(None, node.args.kw_defaults)], scope)
            self._read(node.body, inner, owner, ())
        elif isinstance(node, ast.ClassDef):
            inner = _inner(scope, node.name, in_class=False)
            self.classes[node.name] = node.bases
            self._read(node.body, inner, node.name, ())
        elif isinstance(node, ast.If):
            self._read_expressions([node.test], scope)
            for call in (each for one in node.body for each in ast.walk(one) if isinstance(each, ast.Call)):
                self.conditions[call].append(node.test)
            self._read(node.body, scope, owner, (*tests, node.test))
            otherwise = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            self._read(node.orelse, scope, owner, (*tests, otherwise))
        elif isinstance(node, ast.Match):
            self._read_match(node, scope, owner, tests)
        elif isinstance(node, ast.Global):
            self.globals |= {(scope, name) for name in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._assign(target, node.value, scope, owner, tests)
            self._read_expressions([node.value], scope)
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, (ast.List, ast.Tuple)):
            self._read_expressions([node.value], scope)
            for each in node.value.elts:  # `rows += [x.to(device)]`
                self._note_element(node.target, each, scope, owner, tests)
        elif isinstance(node, ast.Return) and node.value is not None:
            self.returns[scope].append(self._assigned(node.value, tests, scope, owner))
            self._read_expressions([node.value], scope)
            if isinstance(node.value, ast.Tuple):  # what the command line expects: the step, then its arguments
                self._note_step(node.value.elts, scope)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._read_with(node, scope, owner, tests)
        elif isinstance(node, ast.ImportFrom):
            self.stars += [node.module or "" for each in node.names if each.name == "*"]
            self.imports |= {each.asname or each.name: (node.module or "", each.name) for each in node.names}
            self.modules |= {each.asname or each.name: node.module or "" for each in node.names}
        elif isinstance(node, ast.Import):
            self.modules |= {each.asname or each.name.partition(".")[0]: each.name for each in node.names}
        else:
            if isinstance(node, ast.For):
                self._read_loop(node, scope)
            for name, field in ast.iter_fields(node):
                if name in ("body", "orelse", "finalbody"):
                    self._read(field, scope, owner, tests)
                elif name == "handlers":
                    for handler in field:  # does not run on a machine with the device
                        self._read(handler.body, scope, owner, (*tests, ast.Constant(value=False)))
                elif isinstance(field, ast.expr):
                    self._read_expressions([field], scope)
                    self._note_sent(field, scope, owner, tests)

    def _read_match(self, node: ast.Match, scope: str, owner: str, tests: tuple[ast.expr, ...]) -> None:
        self._read_expressions([node.subject], scope)
        for case in node.cases:
            asked = [node.subject, *([case.guard] if case.guard is not None else [])]
            test = ast.copy_location(ast.Tuple(asked, ast.Load()), node.subject)  # with no known truth value
            self._read(case.body, scope, owner, (*tests, test))

    def _read_loop(self, node: ast.For, scope: str) -> None:
        text = ast.unparse(node.iter)
        if text.endswith(".state.values()") and any(
            isinstance(each, ast.Call) and called(each) in ("to", "cuda") for each in ast.walk(node)
        ):
            self.states_sent.append((text.removesuffix(".state.values()"), node))
        self.iterated |= {(scope, name): over for name, over in bound_by_loop(node.target, node.iter).items()}
        self._note_holders(bound_by_loop(node.target, node.iter), scope)
        if not isinstance(node.target, ast.Name):
            return
        over = node.iter
        if isinstance(over, ast.Name):
            before = self.names.get((scope, over.id), [])
            over = before[-1].value if before else over
        members: list[ast.expr] = getattr(over, "elts", [node.target])
        self.loops[scope, node.target.id] = members

    def _note_holders(self, bound: Mapping[str, ast.expr], scope: str) -> None:
        """Record the list or dict that each loop variable takes its values from, as a variable or an attribute."""
        for name, over in bound.items():
            holder = _members_of(over)
            if isinstance(holder, (ast.Name, ast.Attribute)):
                self.over[scope, name] = holder

    def _note_sent(self, value: ast.expr, scope: str, owner: str, tests: tuple[ast.expr, ...]) -> None:
        """Record `model.to(device)` and `self.model.to(device)` like assignments: they move a module in place."""
        if isinstance(value, COMPREHENSIONS):  # `[each.to(device) for each in nets]`
            self._note_holders(loops_of(value), scope)
            value = getattr(value, "elt", value)
        target = _target_of_sending(value)
        sent = Assigned(value, tests, scope, owner, is_sent=True)
        if not scope and isinstance(value, ast.Call) and called(value) == "set_default_device" and value.args:
            self.default = self.set_default = value.args[0]
        self._note_added(value, scope, owner, tests)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in self.functions:
            for given in value.args:
                if isinstance(given, ast.Name):  # the function may move it in place
                    self.names[scope, given.id].append(sent)
        if isinstance(target, ast.Name) and (scope, target.id) in self.over:
            self._note_members_sent(self.over[scope, target.id], sent)
        for each in self.loops.get((scope, target.id), [target]) if isinstance(target, ast.Name) else [target]:
            if isinstance(each, ast.Name) and self._is_self(each.id, scope):
                self.attributes[ITSELF].append(sent)
            elif isinstance(each, ast.Name):
                self.names[scope, each.id].append(sent)
            elif isinstance(each, ast.Attribute):
                self.attributes[each.attr].append(sent)
                if self._is_part(each, scope):
                    self.names[scope, ast.unparse(each)].append(sent)

    def _note_members_sent(self, holder: ast.Name | ast.Attribute, sent: Assigned) -> None:
        """Record that a loop moves the members of a list or a dict."""
        if isinstance(holder, ast.Name):
            self.names[sent.scope, f"{holder.id}[]"].append(sent)
        elif isinstance(holder.value, ast.Name) and self._is_self(holder.value.id, sent.scope):
            self.attributes[f"{holder.attr}[]"].append(sent)

    def _note_added(self, value: ast.expr, scope: str, owner: str, tests: tuple[ast.expr, ...]) -> None:
        """Record what is added to a container, `memory.append(x.to(device))`, under the name `memory[]`."""
        holder = getattr(value.func, "value", None) if isinstance(value, ast.Call) else None
        if not isinstance(value, ast.Call) or holder is None:
            return
        given = value.args
        if called(value) in ("append", "appendleft", "add", "extend") and len(given) == 1:
            for each in getattr(given[0], "elts", ()) if called(value) == "extend" else given:
                self._note_element(holder, each, scope, owner, tests)
        elif called(value) == "insert" and len(given) == 2 and _constant(given[0]) is not None:
            place = ast.copy_location(ast.Subscript(holder, given[0], ast.Store()), given[1])
            if self._is_part(place, scope):
                self.names[scope, ast.unparse(place)].append(self._assigned(given[1], tests, scope))

    def _note_element(
        self, holder: ast.expr, value: ast.expr, scope: str, owner: str, tests: tuple[ast.expr, ...]
    ) -> None:
        if isinstance(holder, ast.Attribute) and isinstance(holder.value, ast.Name):
            is_own = self._is_self(holder.value.id, scope)
            name = ANY if holder.attr == "__dict__" else f"{holder.attr}[]"
            self.attributes[name].append(self._assigned(value, tests, scope, owner if is_own else ""))
        while isinstance(holder, ast.Subscript):  # `rows["a"].append(x)`
            holder = holder.value
        if self._is_part(holder, scope, deep=1):
            self.names[scope, f"{ast.unparse(holder)}[]"].append(self._assigned(value, tests, scope))

    def _assigned(self, value: ast.expr, tests: tuple[ast.expr, ...], scope: str, owner: str = "") -> Assigned:
        return Assigned(value, tests, scope, owner, default=self.default)

    def _is_self(self, name: str, scope: str) -> bool:
        """Whether it is `self` or the first parameter of a method."""
        function = self.functions.get(scope)
        parameters = [] if function is None or "." not in scope else parameters_of(function)
        return name == "self" or (parameters[:1] == [name] and not scope.split(".")[-2].startswith("<"))

    def moved_by(self, owner: str, *, keeps: bool = False, inherits: bool = False) -> set[str]:
        """The attributes that the method `to` of a class moves; includes ITSELF if it iterates over all of them.

        `keeps`: for tensors; skips calls of `to` whose result is dropped. `inherits`: `super().to` moves the others.
        """
        method = self.functions.get(f"{owner}.to")
        dropped = {id(one) for each in _thrown_away_in(method) for one in ast.walk(each)} if keeps else set()
        names: set[str] = set()
        for node in ast.walk(method) if method is not None else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names |= {ITSELF if node.attr == "__dict__" else node.attr} if id(node) not in dropped else set()
            elif isinstance(node, ast.Name) and node.id in ("vars", "setattr", *(["super"] if inherits else [])):
                names.add(ITSELF)
        return names

    def _assign(self, target: ast.expr, value: ast.expr, scope: str, owner: str, tests: tuple[ast.expr, ...]) -> None:
        moved = _target_of_sending(value)
        if isinstance(moved, ast.Name):
            self.sendings[scope, moved.id].append(self._assigned(value, tests, scope))
        if isinstance(target, ast.Name):
            assigned = self._assigned(value, tests, scope, owner)
            self.names["" if (scope, target.id) in self.globals else scope, target.id].append(assigned)
            if owner and scope.split(".")[-1] == owner:
                self.attributes[target.id].append(assigned)
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value, scope, owner, tests)
        elif isinstance(target, ast.Subscript) and _constant(target.slice) is None:
            self._note_element(target.value, value, scope, owner, tests)
        elif isinstance(target, ast.Subscript):
            self.attributes[str(_constant(target.slice))].append(self._assigned(value, tests, scope))
            if self._is_part(target, scope):
                self.names[scope, ast.unparse(target)].append(self._assigned(value, tests, scope))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one, its in _unpacked(target.elts, value):
                self._assign(one, its, scope, owner, tests)

    def _assign_attribute(
        self, target: ast.Attribute, value: ast.expr, scope: str, owner: str, tests: tuple[ast.expr, ...]
    ) -> None:
        holder = target.value
        its = self._owner_of_holder(holder, scope, owner)
        self.attributes[target.attr].append(self._assigned(value, tests, scope, its))
        if self._is_part(target, scope):
            # `x.data = x.data.to(device)` moves x itself.
            name = ast.unparse(holder if target.attr == "data" else target)
            self.names[scope, name].append(self._assigned(value, tests, scope))

    def _owner_of_holder(self, holder: ast.expr, scope: str, owner: str) -> str:
        """The class of the object whose attribute is assigned, if it is `self` or was just made: `new = cls()`."""
        if not isinstance(holder, ast.Name):
            return ""
        if self._is_self(holder.id, scope):
            return owner
        before = self.names.get((scope, holder.id), []) if scope else []
        made = called(before[-1].value) if before and isinstance(before[-1].value, ast.Call) else ""
        return owner if made == "cls" else made if made in self.classes else ""

    def _is_part(self, node: ast.expr, scope: str, deep: int = 0) -> bool:
        """Whether it is a part of a variable: `model.layers[0].weight`, `self.model.head`, but not `self.weight`.

        `deep`: the number of further attributes or indices between the node and the part.
        """
        while isinstance(node, ast.Attribute) or (
            isinstance(node, ast.Subscript) and _constant(node.slice) is not None
        ):
            node, deep = node.value, deep + 1
        return isinstance(node, ast.Name) and (deep > 1 or not self._is_self(node.id, scope))

    def _read_expressions(self, expressions: Iterable[ast.expr], scope: str) -> None:
        for node in (each for expression in expressions for each in ast.walk(expression)):
            if isinstance(node, ast.Call):
                self._read_call(node, scope)
            elif isinstance(node, ast.NamedExpr):
                self._assign(node.target, node.value, scope, "", ())
            elif isinstance(node, COMPREHENSIONS):
                over = loops_of(node)
                self.within |= {
                    each: over for call in ast.walk(node) if isinstance(call, ast.Call) for each in call.args
                }
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        self.attributes[key.value].append(Assigned(value, (), scope))

    def _read_call(self, node: ast.Call, scope: str) -> None:
        name = called(node)
        self.calls[name].append((node, scope))
        if name in _REGISTERING and len(node.args) > 1:
            attribute, owner, holder = node.args[0], scope.split(".")[-2:-1], getattr(node.func, "value", None)
            if isinstance(attribute, ast.Constant):
                self.attributes[str(attribute.value)].append(Assigned(node.args[1], (), scope, "".join(owner)))
            if isinstance(attribute, ast.Constant) and holder is not None and self._is_part(holder, scope, deep=1):
                part = f"{ast.unparse(holder)}.{attribute.value!s}"
                self.names[scope, part].append(self._assigned(node.args[1], (), scope))
        if name == "setattr" and len(node.args) == 3:
            self._note_attribute_set(node, scope)
        if name in ("rehearse", "assert_movable"):
            self._note_step(node.args, scope)
        keywords = {each.arg: each.value for each in node.keywords if each.arg}
        if name == "add_argument" and "default" in keywords and node.args:
            flag = next((each.value for each in node.args if isinstance(each, ast.Constant)), "")
            self.attributes[str(flag).lstrip("-").replace("-", "_")].append(Assigned(keywords["default"], (), scope))
        elif name in ("SimpleNamespace", "Namespace", "dict", "update"):
            for key, value in keywords.items():
                self.attributes[key].append(Assigned(value, (), scope))
        elif name == "setdefault" and len(node.args) == 2 and isinstance(_constant(node.args[0]), str):
            self.attributes[_constant(node.args[0])].append(Assigned(node.args[1], (), scope))

    def _note_attribute_set(self, call: ast.Call, scope: str) -> None:
        holder, name, value = call.args
        owner = owner_of(self, scope)
        if isinstance(_constant(name), str):
            target = ast.copy_location(ast.Attribute(holder, _constant(name), ast.Store()), holder)
            self._assign_attribute(target, value, scope, owner, ())
        elif isinstance(holder, ast.Name) and self._is_self(holder.id, scope):
            self.attributes[ANY].append(self._assigned(value, (), scope, owner))

    def _note_step(self, step_and_arguments: list[ast.expr], scope: str) -> None:
        """Record a step passed to a rehearsal with its arguments as a call."""
        if step_and_arguments and isinstance(step_and_arguments[0], ast.Name):
            step, *arguments = step_and_arguments
            self.calls[step.id].append((ast.Call(step, arguments, []), scope))  # type: ignore[attr-defined]


def _constant(node: ast.expr) -> Any:
    """The literal key or index that an expression is; None if it is not a literal."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if type(node.operand.value) is int else None
    return node.value if isinstance(node, ast.Constant) else None


def _unpacked(targets: list[ast.expr], value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of `a, *b = value` with the expression that it receives; for `b` this is the whole value."""
    if any(isinstance(each, ast.Starred) for each in targets):
        yield from ((each.value if isinstance(each, ast.Starred) else each, value) for each in targets)
    else:
        yield from zip(targets, _parts(value, len(targets)), strict=False)


def _parts(value: ast.expr, count: int) -> list[ast.expr]:
    """The expressions that the targets of `a, b = value` receive."""
    if isinstance(value, (ast.Tuple, ast.List)) and not any(isinstance(each, ast.Starred) for each in value.elts):
        return value.elts
    indices = (ast.copy_location(ast.Constant(index), value) for index in range(count))
    return [ast.copy_location(Part(value=value, slice=index, ctx=ast.Load()), value) for index in indices]


class Part(ast.Subscript):
    """One of the values that an unpacking assigns; a node created here, not in the file."""


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def loops_of(node: ast.expr) -> dict[str, ast.expr]:
    """The iterables of a comprehension, by loop variable."""
    generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
    return {name: over for each in generators for name, over in bound_by_loop(each.target, each.iter).items()}


def bound_by_loop(target: ast.expr, over: ast.expr) -> dict[str, ast.expr]:
    """The iterable that each loop variable takes its values from: in `for a, b in zip(x, y)`, y for b."""
    if isinstance(target, ast.Tuple) and isinstance(over, ast.Call):
        given = {"zip": over.args, "enumerate": [over.args[0], *over.args[:1]] if over.args else []}.get(
            called(over), []
        )
        if len(given) == len(target.elts) and not any(isinstance(each, ast.Starred) for each in given):
            pairs = zip(target.elts, given, strict=True)
            return {name: each for one, own in pairs for name, each in bound_by_loop(one, own).items()}
    return {each.id: over for each in ast.walk(target) if isinstance(each, ast.Name)}


def _makes_a_device(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and called(node) == "device"


def _members_of(over: ast.expr) -> ast.expr:
    """The list or dict whose members a loop goes through: `nets` in `for each in nets.values()`."""
    if not isinstance(over, ast.Call):
        return over
    if isinstance(over.func, ast.Attribute) and over.func.attr in ("values", "items"):
        return over.func.value
    is_copy = isinstance(over.func, ast.Name) and over.func.id in ("list", "tuple", "reversed")
    return _members_of(over.args[0]) if is_copy and len(over.args) == 1 else over


_REGISTERING = {"register_buffer", "register_parameter", "register_module", "add_module"}
ANY = "*"  # attributes whose name is a variable: `setattr(self, name, value)`
ITSELF = ""  # the name under which the object itself is recorded


def _target_of_sending(value: ast.expr) -> ast.expr | None:
    """The expression that a statement moves: `net` in `net.to(device)` and in `net.to(device).train()`."""
    target: ast.expr | None = None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        target = value.func.value if value.func.attr in ("to", "cuda", "cpu") else target
        value = value.func.value
    return target


def called(node: ast.Call) -> str:
    return _last_name(node.func)


def _last_name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _inner(scope: str, name: str, *, in_class: bool) -> str:
    """The scope of an inner definition, in the format of `__qualname__`."""
    if not scope:
        return name
    return f"{scope}.{name}" if in_class or scope.split(".")[-1][:1].isupper() else f"{scope}.<locals>.{name}"


def _texts(file: str) -> dict[str, str]:
    """The source text by file; all cells of a notebook, which are separate files with shared variables."""
    is_cell = "ipykernel" in file or file.startswith("<ipython-input")
    files = [each for each in linecache.cache if is_cell and ("ipykernel" in each or each.startswith("<ipython-input"))]
    return {each: "".join(linecache.getlines(each)) for each in files or [file]}


def _trees(texts: dict[str, str]) -> Iterator[tuple[str, ast.Module]]:
    for file, text in texts.items():
        try:
            yield file, with_self(ast.parse(text))
        except SyntaxError:  # notebook magics
            continue


_read: dict[str, tuple[dict[str, str], Source]] = {}  # by file, with the texts that were read


class Reasons:
    """Finds the statement that chose a value by asking for a device or for its availability."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._known: dict[tuple[str, ...], Line | None] = {}  # results for attributes and parameters
        self._classes: dict[tuple[ast.expr, str], tuple[Source, str] | None] = {}  # of objects, by expression and scope
        self._made_by: Mapping[str, ast.Call] = {}  # by class: the call that created the inspected object

    @contextmanager
    def of_object(self, made_by: Mapping[str, ast.Call]) -> Iterator[None]:
        """Within the context, read each class as created by its call in `made_by`."""
        before = self._made_by, self._known
        self._made_by, self._known = made_by, {}
        try:
            yield
        finally:
            self._made_by, self._known = before

    def source(self, file: str) -> Source:
        if file not in self._sources:
            texts, (known, source) = _texts(file), _read.get(file, ({}, None))
            if source is None or known != texts:
                source = Source(file, texts)
                _read[file] = texts, source
            self._sources[file] = source
        return self._sources[file]

    def with_imported(self, files: Iterable[str]) -> Iterator[Source]:
        """Yield the sources of some files and of the program's modules that they import."""
        todo, seen = [*files], set[str]()
        while todo:
            file = todo.pop(0)
            if file in seen:
                continue
            seen.add(file)
            source = self.source(file)
            yield source
            for name in {*source.modules.values(), *source.stars}:
                imported = getattr(sys.modules.get(name), "__file__", None)
                if imported is not None and is_program(imported):
                    todo.append(imported)

    def of(self, source: Source, expression: ast.expr, scope: str, deep: int = 0) -> Line | None:
        """The line that chose the value of an expression by asking for a device; None if the value is fixed."""
        if deep > DEEP:
            return None
        nodes = [*self._open(source, expression, scope, deep)]
        for node in nodes:
            if _asks(node) or self._asks_a_library(source, node, scope):
                there = node if hasattr(node, "lineno") else expression
                return Line(source.cells.get(there, source.file), there.lineno)
        for node in nodes:
            found = None
            if isinstance(node, ast.Name):
                found = self.of_name(source, node.id, scope, deep + 1)
            elif isinstance(node, ast.Attribute) and (module := self._module_of(source, node)) is not None:
                found = self.of_name(module, node.attr, "", deep + 1)
            elif isinstance(node, ast.Attribute) and not _is_torchs(node) and not _is_of_tensor(source, node, scope):
                found = self.of_attribute(source, node.attr, (), deep + 1)
                found = found or self._of_instance(source, node, scope, deep + 1)
            elif isinstance(node, ast.Subscript) and isinstance(key := getattr(node.slice, "value", None), str):
                found = self.of_attribute(source, key, (), deep + 1)
                if found is None and _SETTINGS.match(_last_name(node.value)):
                    found = self._of_settings(key)
            elif isinstance(node, ast.Call) and called(node) == "get_default_device" and source.set_default:
                found = self.of(source, source.set_default, "", deep + 1)
            elif isinstance(node, ast.Call):
                found = self._of_result(source, result_of(source, node, scope), deep + 1)
            if found is not None:
                return found
        return None

    def _of_instance(self, source: Source, node: ast.Attribute, scope: str, deep: int) -> Line | None:
        """The line that chose an attribute of an object whose class is in another file: `cfg.device`."""
        key = node.value, scope
        if key not in self._classes:
            self._classes[key] = None  # ends the recursion of names that refer to each other
            self._classes[key] = self._class_of(source, node.value, scope, 0)
        made_by = self._classes[key]
        if made_by is not None:
            return self.of_attribute(made_by[0], node.attr, made_by[1:], deep)
        return self._of_settings(node.attr) if _SETTINGS.match(_last_name(node.value)) else None

    def _of_settings(self, name: str) -> Line | None:
        """The line that chose an attribute or a key of settings that are made in another file, by its name alone."""
        for source in list(self._sources.values()):
            found = self.of_any(source, [each for each in source.attributes.get(name, ()) if not each.owner])
            if found is not None:
                return found
        return None

    def _class_of(self, source: Source, node: ast.expr, scope: str, deep: int) -> tuple[Source, str] | None:
        """The class whose constructor made the value of an expression, with the class's file; None if unknown."""
        if deep > DEEP:
            return None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in source.classes:
                return source, node.func.id
            module, name = self.imported(source, node.func.id)
            other = self._file_named(module)
            if other is not None and name in other.returns:  # `get_config()`
                given = [(other, each.value, each.scope) for each in other.returns[name]]
                return next(filter(None, (self._class_of(*each, deep + 1) for each in given)), None)
            return (other, name) if other is not None and name in other.classes else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            owners = {*family_of(source, owner_of(source, scope))}
            given = [
                (source, each.value, each.scope)
                for each in source.attributes.get(node.attr, ())
                if each.owner in owners
            ]
        elif isinstance(node, ast.Name):
            module, name = self.imported(source, node.id)
            if (other := self._file_named(module)) is not None and name in other.classes:  # the class itself
                return other, name
            given = self._bindings(source, node.id, scope)
        else:
            return None
        return next(filter(None, (self._class_of(*each, deep + 1) for each in given)), None)

    def _bindings(self, source: Source, name: str, scope: str) -> list[tuple[Source, ast.expr, str]]:
        """The expressions that a variable or a parameter gets its values from, also in other files."""
        while scope and not source.names.get((scope, name)):
            if scope in source.functions and name in parameters_of(source.functions[scope]):
                return self.arguments(source, scope, name)
            scope = scope_around(scope)
        if source.names.get((scope, name)):
            return [(source, each.value, each.scope) for each in source.names[scope, name]]
        module, original = self.imported(source, name)
        other = self._file_named(module)
        return (
            [] if other is None else [(other, each.value, each.scope) for each in other.names.get(("", original), ())]
        )

    def _file_named(self, module: str) -> Source | None:
        """The source of a module of the program."""
        file = getattr(sys.modules.get(module), "__file__", None)
        return self.source(file) if file is not None and is_program(file) else None

    def _module_of(self, source: Source, node: ast.Attribute) -> Source | None:
        """The source of the program's module that an attribute belongs to: `settings` in `settings.DEVICE`."""
        file = self.file_of(source, node.value.id) if isinstance(node.value, ast.Name) else None
        return None if file is None else self.source(file)

    def _open(self, source: Source, expression: ast.AST, scope: str, deep: int) -> Iterator[ast.AST]:
        """Yield the nodes of an expression, without the parts that are the CPU on every machine."""
        if self._is_the_cpu(source, expression, scope, deep + 1):
            return
        yield expression
        for each in ast.iter_child_nodes(expression):
            yield from self._open(source, each, scope, deep)

    def _is_the_cpu(self, source: Source, node: ast.AST, scope: str, deep: int) -> bool:
        """Whether it is the CPU on every machine: `"cpu"`, or a call with it such as `pick("cpu")`."""
        if deep > DEEP:
            return False
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and node.value.partition(":")[0] == "cpu"
        if isinstance(node, ast.Call):
            name, given = called(node), [*node.args, *(each.value for each in node.keywords)]
            if name != "device" and name not in source.returns and name not in source.imports:
                return False
            return any(self._is_the_cpu(source, each, scope, deep + 1) for each in given)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self._is_the_cpu(source, node.values[0], scope, deep + 1)
        if isinstance(node, ast.IfExp):
            return all(self._is_the_cpu(source, each, scope, deep + 1) for each in (node.body, node.orelse))
        if isinstance(node, ast.Name):
            return self._names_the_cpu(source, node.id, scope, deep)
        return False

    def _names_the_cpu(self, source: Source, name: str, scope: str, deep: int) -> bool:
        while scope and (scope, name) not in source.names:
            if scope in source.functions and name in parameters_of(source.functions[scope]):
                default = default_of(source.functions[scope], name)
                by_default = [(source, default, scope_around(scope))] if default is not None else []
                given = self.arguments(source, scope, name) or by_default
                return bool(given) and all(self._is_the_cpu(*each, deep + 1) for each in given)
            scope = scope_around(scope)
        assigned = source.names.get((scope, name), [])
        return bool(assigned) and all(
            not each.tests and self._is_the_cpu(source, each.value, each.scope, deep + 1) for each in assigned
        )

    def _asks_a_library(self, source: Source, node: ast.AST, scope: str) -> bool:
        """Whether it is a device chosen by a library: `accelerator.device`, `idist.device()`."""
        if not (isinstance(node, ast.Attribute) and node.attr == "device"):
            return False
        if self.is_inherited(source, node, scope) or self.is_inherited(source, node.value, scope):
            return True
        if isinstance(node.value, ast.Attribute):  # `self.accelerator.device`
            return any(self.by_library(source, each) for each in source.attributes.get(node.value.attr, ()))
        if not isinstance(node.value, ast.Name):
            return False
        name = node.value.id
        return is_librarys(source, name) or self.made_by_library(source, name, scope) is not None

    def is_inherited(self, source: Source, node: ast.expr, scope: str) -> bool:
        """Whether it is an attribute, such as `self.args`, set by a library base class that chooses a device."""
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or node.value.id != "self":
            return False
        owners = [each for each in scope.split(".") if each in source.classes]
        is_own = any(each.owner in owners for each in source.attributes.get(node.attr, ()))
        return not is_own and any(_derives_from_mover(source, each) for each in owners)

    def made_by_library(self, source: Source, name: str, scope: str = "") -> Line | None:
        """The line that creates a variable with a library call that does not name the CPU."""
        assigned = [*source.names.get((scope, name), []), *source.names.get(("", name), [])]
        return next(filter(None, (self.by_library(source, each) for each in assigned)), None)

    def by_library(self, source: Source, assigned: Assigned) -> Line | None:
        value = _call_of(assigned)
        called_first = value.func if value is not None else None
        while isinstance(called_first, ast.Attribute):
            called_first = called_first.value
        if value is None or not isinstance(called_first, ast.Name) or not is_librarys(source, called_first.id):
            return None
        given = [*value.args, *(each.value for each in value.keywords)]
        if "cpu" in ast.unparse(value) or any(self._is_the_cpu(source, each, assigned.scope, 0) for each in given):
            return self.of(source, value, assigned.scope)
        return Line(source.cells.get(value, source.file), value.lineno)

    def made_by_method(self, source: Source, name: str) -> Line | None:
        """The line that gets a variable from a library object: `loader = fabric.setup_dataloaders(...)`."""
        for value in filter(None, map(_call_of, source.names.get(("", name), ()))):
            called_on = getattr(value.func, "value", None)
            if isinstance(called_on, ast.Name) and called_on.id != name and "cpu" not in ast.unparse(value):
                return self.made_by_library(source, called_on.id)
        return None

    def of_any(self, source: Source, assigned: Iterable[Assigned], deep: int = 0) -> Line | None:
        for each in assigned:
            for expression in (each.value, *each.tests):
                found = self.of(source, expression, each.scope, deep + 1)
                if found is not None:
                    return found
        return None

    def of_name(self, source: Source, name: str, scope: str, deep: int = 0) -> Line | None:
        """The line that chose a variable. Deep inside of an expression, each variable is looked up once."""
        key = source.file, scope, name, "name"
        if deep <= _BRIEF or deep > DEEP:
            return self._of_name(source, name, scope, deep)
        if key not in self._known:
            self._known[key] = None
            self._known[key] = self._of_name(source, name, scope, _BRIEF)
        return self._known[key]

    def _of_name(self, source: Source, name: str, scope: str, deep: int) -> Line | None:
        while True:
            if not scope and (bound := self.bound(source, name))[1]:
                return self.of_any(*bound, deep)
            if source.names.get((scope, name)):
                return self.of_any(source, source.names[scope, name], deep)
            if scope in source.functions and name in parameters_of(source.functions[scope]):
                return self.of_parameter(source, scope, name)
            if not scope:
                break
            scope = scope_around(scope)
        if name in source.returns:  # a function that is called later
            return self._of_result(source, name, deep + 1)
        module, original = self.imported(source, name)
        file = getattr(sys.modules.get(module), "__file__", None)
        return self.of_name(self.source(file), original, "", deep + 1) if file and deep <= DEEP else None

    def bound(self, source: Source, name: str) -> tuple[Source, list[Assigned]]:
        """The statements that bind a module variable: in another file, `config.device = ...`, else in its own."""
        for other in list(self._sources.values()):
            for alias in other.modules if other is not source else ():
                if self.file_of(other, alias) == source.file:
                    given = [its for (_, one), its in other.names.items() if one == f"{alias}.{name}"]
                    if given:
                        return other, [each for its in given for each in its]
        return source, source.names.get(("", name), [])

    def file_of(self, source: Source, alias: str) -> str | None:
        """The file of the program's module that a file imports under a name."""
        package, name = source.imports.get(alias, ("", ""))
        module = f"{package}.{name}" if name else source.modules.get(alias, "")
        file = getattr(sys.modules.get(module), "__file__", None)
        return file if file is not None and is_program(file) else None

    def _imports(self, source: Source, other: Source) -> bool:
        """Whether a file imports another file or a name from it."""
        modules = [module for module, _ in source.imports.values()]
        files = [getattr(sys.modules.get(each), "__file__", None) for each in modules]
        return other.file in files or any(self.file_of(source, each) == other.file for each in source.modules)

    def _is_of_another(self, source: Source, call: ast.Call, scope: str, owner: str) -> bool:
        """Whether it is a method of an object of another class than `owner`: `rows.push(x)` after `rows = Rows()`."""
        holder = call.func.value if isinstance(call.func, ast.Attribute) else None
        assigned: list[Assigned] = []
        if isinstance(holder, ast.Name):
            assigned = source.names.get((scope, holder.id)) or source.names.get(("", holder.id), [])
        elif isinstance(holder, ast.Attribute) and isinstance(holder.value, ast.Name) and holder.value.id == "self":
            its = owner_of(source, scope)
            assigned = [each for each in source.attributes.get(holder.attr, ()) if each.owner == its]
        elif isinstance(holder, ast.Call):  # `nn.Linear(4, 2).to(device)`
            return bool(owner) and _is_made_as_another(source, holder, owner)
        made = [each.value for each in assigned if not each.is_sent]
        return bool(owner and made) and all(_is_made_as_another(source, each, owner) for each in made)

    def conditions_of(self, source: Source, scope: str) -> Iterator[tuple[Source, ast.expr, str]]:
        """Yield the tests around the calls of a function or method: `if torch.cuda.is_available(): norm.cuda()`."""
        owner = owner_of(source, scope)
        for caller, call, at in self.calls_of(source, scope):
            holder = call.func.value if isinstance(call.func, ast.Attribute) else None
            if owner and not (isinstance(holder, ast.Name) and _is_instance(caller, holder.id, at, owner)):
                continue
            yield from ((caller, test, at) for test in caller.conditions.get(call, ()))

    def _is_of(self, source: Source, func: ast.expr, file: str) -> bool:
        """Whether it belongs to `file`, as in `layers.Coupling` where `file` is imported as `layers`."""
        is_attribute = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)
        return is_attribute and self.file_of(source, func.value.id) == file  # type: ignore[attr-defined]

    def imported(self, source: Source, name: str) -> tuple[str, str]:
        """The module that a name is imported from, and its name in that module; empty strings if not imported."""
        if name not in source.imports:
            for module in source.stars:
                if hasattr(sys.modules.get(module), name):
                    return module, name
        return source.imports.get(name, ("", ""))

    def of_parameter(self, source: Source, scope: str, name: str) -> Line | None:
        """The line that chose a parameter: through the arguments of all calls, else through its default."""
        key = source.file, scope, name
        if key not in self._known:
            self._known[key] = None  # ends the recursion of functions that call themselves
            self._known[key] = self._of_arguments(source, scope, name)
        return self._known[key]

    def _of_arguments(self, source: Source, scope: str, name: str) -> Line | None:
        # The depth is counted anew, here and for attributes: a result that is kept must not be one cut short.
        found = [self.of(caller, given, at) for caller, given, at in self.arguments(source, scope, name)]
        if found:
            return found[0] if all(found) else None
        default = default_of(source.functions[scope], name)
        return None if default is None else self.of(source, default, scope_around(scope))

    def arguments(self, source: Source, scope: str, name: str) -> list[tuple[Source, ast.expr, str]]:
        """The arguments passed for a parameter, each with the source and the scope of the call."""
        function = source.functions[scope]
        return [
            (caller, given, at)
            for caller, call, at in self.calls_of(source, scope)
            if (given := argument_of(call, function, name)) is not None and not _hands_on(given, at, name, scope)
        ]

    def calls_of(self, source: Source, scope: str) -> Iterator[tuple[Source, ast.Call, str]]:
        """Yield the calls of a function in the program's files, each with its source and scope."""
        *_, owner, own = ["", *scope.split(".")]
        called_as = owner if own == "__init__" else own
        for caller in [source, *(each for each in self._sources.values() if each is not source)]:
            for call, at in caller.calls.get(called_as, ()):
                is_imported = called_as in caller.imports or self._is_of(caller, call.func, source.file)
                is_method = own != "__init__" and owner in source.classes and self._imports(caller, source)
                is_known = caller is source or is_imported or is_method
                if own == "__init__" and self._made_by.get(owner, call) is not call:
                    continue
                if is_known and not self._is_of_another(caller, call, at, owner):
                    yield caller, call, at
        for call, at in source.calls.get("__init__", ()) if own == "__init__" else ():
            names = [each for each in at.split(".") if each in (self._made_by or source.classes)]
            heirs = (source.classes[each] for each in names if each in source.classes)
            if any(_last_name(base) == owner for bases in heirs for base in bases):
                yield source, call, at  # `super().__init__(...)`

    def of_attribute(self, source: Source, name: str, owners: tuple[str, ...] = (), deep: int = 0) -> Line | None:
        key = source.file, *owners, f".{name}"
        if deep <= DEEP and key not in self._known:
            self._known[key] = None
            self._known[key] = self._of_attribute(source, name, owners)
        return self._known.get(key)

    def _of_attribute(self, source: Source, name: str, owners: tuple[str, ...]) -> Line | None:
        """The line that chose an attribute. `owners`: the classes of its object, if known."""
        every = source.attributes.get(name, [])
        own = [each for each in every if each.owner in owners]
        given = [
            (keyword.value, at)
            for owner in owners
            for call, at in source.calls.get(owner, ())
            for keyword in call.keywords
            if keyword.arg == name
        ]
        if given and all(_is_class_level(each) for each in own):  # a dataclass
            lines = [self.of(source, value, at) for value, at in given]
            return lines[0] if all(lines) else None
        own += [
            each
            for scope in source.properties.get(name, ())
            for each in source.returns.get(scope, ())
            if not owners or each.owner in owners
        ]
        others = [] if owners and own else [each for each in every if not owners or not each.owner]
        found = self.of_any(source, [*own, *others])
        if found is None and not owners and not own and not others:  # of a class in another file
            files = (each for each in self.with_imported([source.file]) if each is not source)
            found = next(filter(None, (self.of_attribute(each, name) for each in files)), None)
        return found

    def is_current_accelerator(self, source: Source, expression: ast.expr, scope: str, deep: int = 0) -> bool:
        """Whether it is what torch.accelerator.current_accelerator() returned, at least in one branch."""
        if deep > DEEP:
            return False
        if isinstance(expression, ast.IfExp):
            branches = expression.body, expression.orelse
            return any(self.is_current_accelerator(source, each, scope, deep + 1) for each in branches)
        if isinstance(expression, ast.Name):
            assigned = [*source.names.get((scope, expression.id), ()), *source.names.get(("", expression.id), ())]
            values = [(source, each.value, each.scope) for each in assigned]
            if scope in source.functions and expression.id in parameters_of(source.functions[scope]):
                values += self.arguments(source, scope, expression.id)
            return any(self.is_current_accelerator(*each, deep + 1) for each in values)
        return isinstance(expression, ast.Call) and called(expression) == "current_accelerator"

    def _of_result(self, source: Source, name: str, deep: int) -> Line | None:
        return self.of_any(source, source.returns[name], deep) if name in source.returns else None


def _call_of(assigned: Assigned) -> ast.Call | None:
    value = assigned.value.value if isinstance(assigned.value, Part) else assigned.value
    return value if isinstance(value, ast.Call) else None


def is_mover(kind: type) -> bool:
    return any(f"{each.__module__}.{each.__name__}" in _MOVERS for each in kind.__mro__)


def _derives_from_mover(source: Source, name: str) -> bool:
    """Whether a class of the file derives from a library class that moves modules."""
    bases = source.classes[name]
    own = {each.id for each in bases if isinstance(each, ast.Name) and each.id in source.classes} - {name}
    return any(_derives_from_mover(source, each) for each in own) or any(
        isinstance(kind, type) and is_mover(kind) for kind in (_imported(source, each) for each in bases)
    )


def _imported(source: Source, node: ast.expr) -> object:
    """The object that an imported name, or an attribute of one, refers to."""
    if isinstance(node, ast.Attribute):
        return getattr(_imported(source, node.value), node.attr, None)
    if not isinstance(node, ast.Name):
        return None
    module, name = source.imports.get(node.id, (source.modules.get(node.id, ""), ""))
    found = sys.modules.get(module)
    return getattr(found, name, None) if name else found


def _thrown_away_in(method: ast.AST | None) -> Iterator[ast.expr]:
    """Yield the calls of `to` whose result is dropped: `self.rewards.to(device)`."""
    for each in ast.walk(method) if method is not None else ():
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and called(each.value) in ("to", "cuda"):
            yield each.value


def _is_made_as_another(source: Source, value: ast.expr, owner: str) -> bool:
    if not isinstance(value, ast.Call):
        return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp))
    kind, first = called(value), value.func
    while isinstance(first, (ast.Attribute, ast.Call)):  # `nn` in `nn.Linear(4, 2).to(device)`
        first = first.value if isinstance(first, ast.Attribute) else first.func
    is_torchs = isinstance(first, ast.Name) and source.modules.get(first.id, "").partition(".")[0] == "torch"
    is_known = is_torchs or kind in source.classes or kind in ("deque", "list", "dict", "set")
    return is_known and owner not in {*family_of(source, kind)}


def _is_instance(source: Source, name: str, scope: str, owner: str) -> bool:
    """Is a variable made by the constructor of a class, or is it `self`?"""
    assigned = source.names.get((scope, name)) or source.names.get(("", name), [])
    made = [called(each.value) for each in assigned if isinstance(each.value, ast.Call)]
    return name == "self" or any(owner in family_of(source, each) for each in made)


def family_of(source: Source, name: str) -> Iterator[str]:
    """Yield a class of the file and its base classes."""
    yield name
    for each in source.classes.get(name, ()):
        if _last_name(each) != name:
            yield from family_of(source, _last_name(each))


def _hands_on(given: ast.expr, at: str, name: str, scope: str) -> bool:
    """Whether a recursive function passes this parameter on to itself."""
    return at == scope and isinstance(given, ast.Name) and given.id == name


def is_librarys(source: Source, name: str) -> bool:
    module = source.modules.get(name, "")
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and is_installed(file) and module.partition(".")[0] not in ("torch", "numpy")


def is_accelerator(value: object) -> bool:
    """Is it the name of an accelerator, such as "cuda:0"?"""
    return isinstance(value, str) and _ACCELERATOR.match(value) is not None


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return is_accelerator(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr in ASKS or (node.attr.endswith("Tensor") and getattr(node.value, "attr", "") == "cuda")
    return isinstance(node, ast.Name) and node.id in ASKS


def names_of(value: ast.expr, name: str) -> bool:
    """Whether the value is this variable, or a tuple or list that contains it."""
    members = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    return any(isinstance(each, ast.Name) and each.id == name for each in members)


def _is_torchs(node: ast.Attribute) -> bool:
    """Whether it is an attribute of a module such as torch, rather than of an object."""
    return isinstance(node.value, ast.Name) and node.value.id in ("torch", "th", "nn", "np")


def _is_of_tensor(source: Source, node: ast.Attribute, scope: str) -> bool:
    """Whether it is `x.device` of a tensor x that a torch function returned, so that it names the tensor's device."""
    if node.attr != "device" or not isinstance(node.value, ast.Name):
        return False
    assigned = source.names.get((scope, node.value.id), [])
    calls = [[inner for inner in ast.walk(each.value) if isinstance(inner, ast.Call)] for each in assigned]
    return bool(calls) and all(
        any(isinstance(call.func, ast.Attribute) and _is_torchs(call.func) for call in inside) for inside in calls
    )


def owner_of(source: Source, scope: str) -> str:
    """The innermost class that a scope is in, or an empty string."""
    return next((each for each in reversed(scope.split(".")) if each in source.classes), "")


def result_of(source: Source, call: ast.Call, scope: str) -> str:
    """The scope of the function that is called: `S.table` for `S.table(4)`, and for `cls.table(4)` in S."""
    holder = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(holder, ast.Name) or called(call) in source.returns:
        return called(call)
    owner = owner_of(source, scope) if holder.id in ("self", "cls") else holder.id
    owners = [each for each in family_of(source, owner) if f"{each}.{called(call)}" in source.returns]
    return f"{owners[0]}.{called(call)}" if owners else called(call)


def scope_around(scope: str) -> str:
    outer = scope.rpartition(".")[0]
    return outer.removesuffix(".<locals>")


def _is_class_level(assigned: Assigned) -> bool:
    return assigned.scope.split(".")[-1] == assigned.owner


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def vararg_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """The name of the `*args` parameter, if any."""
    return function.args.vararg.arg if function.args.vararg else None


def default_of(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    given = function.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    found: dict[str, ast.expr | None] = dict(zip(reversed(positional), reversed(given.defaults), strict=False))
    found |= dict(zip((each.arg for each in given.kwonlyargs), given.kw_defaults, strict=True))
    return found.get(name)


def argument_of(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """The argument that a call passes for a parameter; None if it uses the default."""
    by_name = {each.arg: each.value for each in call.keywords}
    if name in by_name:
        return by_name[name]
    parameters = parameters_of(function)
    parameters = parameters[parameters[:1] == ["self"] :]
    index = parameters.index(name) if name in parameters else len(call.args)
    return call.args[index] if index < len(call.args) else None
