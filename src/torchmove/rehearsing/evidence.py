"""What a run knows about a finding beside its text: the expressions involved, and what names a device there.

It is recorded only for `rehearse --fix`, while the variables have their values. It is plain data, which travels from
the process that rehearses to the one that edits.
"""

from __future__ import annotations

import ast
import gc
import linecache
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchmove.rehearsing.provenance import Origin, Provenance, is_installed, users_frames
from torchmove.rehearsing.tensors import CPU, StandIn, place_of_generator

_MOST_REFERENCES = 3
_MOST_VARIABLES = 64
_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_MISSING = object()
_VIEWS = ("T", "mT", "H", "data", "grad", "real", "imag")
# Methods that return something else, or a tensor on another device.
_ELSEWHERE = (
    "to",
    "cuda",
    "cpu",
    "size",
    "numel",
    "dim",
    "item",
    "tolist",
    "stride",
    "nelement",
    "numpy",
    "element_size",
)


class Span(NamedTuple):
    """A piece of a file; columns count characters, lines from 1."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


class Site(NamedTuple):
    """An expression that ran.

    Attributes:
        span: the expression, without parentheses around it.
        references: expressions for the right device that are valid there, the best first.
    """

    span: Span
    references: tuple[str, ...]


class Operand(NamedTuple):
    """A part of a failing expression.

    Attributes:
        text: its source, in one line.
        what: "tensor", "list" (of tensors), "module", or "call".
        variable: what an assignment in front of the statement can replace: a variable of the function that this is or
            is computed from; of a tensor that is written to, the attribute or element that holds it.
        written: the operation writes to it: then a copy of it is of no use.
        mover: the variable whose own `to` would move it, such as a batch object.
        method: the method that is called on it.
    """

    span: Span
    text: str
    what: str
    variable: str = ""
    written: bool = False
    mover: str = ""
    method: str = ""


class AttributeOf(NamedTuple):
    """A plain attribute of a module.

    Attributes:
        classes: the file and qualified name of the module's class and of its bases.
        trained: it requires gradients: then it is no buffer.
    """

    name: str
    classes: tuple[tuple[str, str], ...]
    trained: bool


class Evidence(NamedTuple):
    """What is known about one misplaced tensor of a finding.

    Attributes:
        failed: the expression that failed.
        strays: the parts of it that are misplaced.
        others: for a generator, the tensors that go with it.
        made: the expression that made the tensor or put it there, if the step did.
        attribute: the module's attribute that it is.
        thrown: the line of a `.to()` whose result was not kept.
        trained: the tensor requires gradients.
    """

    failed: Site | None
    strays: tuple[Operand, ...] = ()
    others: tuple[Operand, ...] = ()
    made: Site | None = None
    attribute: AttributeOf | None = None
    thrown: tuple[str, int] | None = None
    trained: bool = False


class Recorder:
    """Records the evidence of a run. `stage`: its simulated device."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self._about: tuple[Any, Origin | None, Provenance] | None = None
        self._sites: dict[tuple[int, int], tuple[Any, Site | None]] = {}
        self.found: dict[Any, list[Evidence]] = {}

    def site_here(self) -> Site | None:
        """The user's expression that is running; for each instruction, the first time counts."""
        frame = _own_frame()
        if frame is None:
            return None
        key = (id(frame.f_code), frame.f_lasti)
        if key not in self._sites:
            at = _At(frame, self.stage)
            self._sites[key] = (frame.f_code, at.site())
        return self._sites[key][1]

    def about(self, stray: Any, origin: Origin | None, came: Provenance) -> None:
        """Take note of the tensor that the next finding is about."""
        self._about = (stray, origin, came)

    def add(self, key: Any, kind: str) -> None:
        """Record a finding, which is being reported. `key` tells findings apart."""
        about, self._about = self._about, None
        stray, origin, came = about or (None, None, None)
        frame = _own_frame()
        at = None if frame is None else _At(frame, self.stage)
        failed = None if at is None else at.site()
        strays: tuple[Operand, ...] = ()
        if at is not None and failed is not None:
            strays = at.misplaced(stray, origin) if about is not None else at.named_by(kind)
        others = at.beside_a_generator() if at is not None and kind == "generator" else ()
        thrown = (came.line.file, came.line.number) if came and came.line and came.kind == "thrown-away" else None
        tensor = origin.tensor() if origin is not None and origin.tensor is not None else None
        known = tensor is not None and came is not None and came.kind in ("attribute", "cache", "container", "closure")
        found = Evidence(
            failed,
            strays,
            others,
            None if origin is None else origin.made,
            _attribute_of(tensor) if known else None,
            thrown,
            bool(getattr(tensor, "requires_grad", False)),
        )
        if found not in self.found.setdefault(key, []):  # a line in a loop is reported each time
            self.found[key].append(found)


def _own_frame() -> FrameType | None:
    """The innermost frame of the user's own code."""
    frames = [each for each in users_frames() if not is_installed(each.f_code.co_filename)]
    return frames[-1] if frames else None


def _attribute_of(tensor: Any) -> AttributeOf | None:
    """The module's plain attribute that holds this tensor."""
    for each in gc.get_objects():
        if not issubclass(type(each), nn.Module):
            continue
        name = next((name for name, value in vars(each).items() if value is tensor), None)
        if name is not None:
            classes = [kind for kind in type(each).__mro__ if kind.__module__ not in ("builtins", nn.Module.__module__)]
            files = [(getattr(_init_of(kind), "co_filename", ""), kind.__qualname__) for kind in classes]
            return AttributeOf(name, tuple(each for each in files if each[0]), bool(tensor.requires_grad))
    return None


def _init_of(kind: type) -> Any:
    functions = (each for each in vars(kind).values() if isinstance(each, types.FunctionType))
    return next((each.__code__ for each in functions), None)


# ---------------------------------------------------------------- a frame, and the expression that it is evaluating


class _At:
    """A frame at the instruction that it is executing."""

    def __init__(self, frame: FrameType, stage: Any) -> None:
        self.frame, self.stage, self.file = frame, stage, frame.f_code.co_filename

    @cached_property
    def scope(self) -> dict[str, Any]:
        """The variables that the function has, without those of its module."""
        found = dict(self.frame.f_locals)
        outer = self.frame.f_back
        is_inside = outer is not None and any(each is self.frame.f_code for each in outer.f_code.co_consts)
        if is_inside and outer is not None and self.frame.f_code.co_name in _COMPREHENSIONS:
            found = {**outer.f_locals, **found}
        return {name: value for name, value in found.items() if name.isidentifier()}

    @cached_property
    def source(self) -> _Source | None:
        return _parsed(self.file, tuple(linecache.getlines(self.file)))

    @cached_property
    def node(self) -> ast.AST | None:
        return None if self.source is None else self.source.node_at(_position(self.frame))

    def text(self, node: ast.AST) -> str:
        """An expression as it is written, in one line."""
        written = ast.get_source_segment("".join(linecache.getlines(self.file)), node)
        return ast.unparse(node) if written is None or "\n" in written else written

    def site(self) -> Site | None:
        return None if self.node is None else Site(self.span(self.node), self.references())

    def span(self, node: Any) -> Span:
        lines = linecache.getlines(self.file)
        start = _characters(lines, node.lineno, node.col_offset)
        return Span(
            self.file, node.lineno, start, node.end_lineno, _characters(lines, node.end_lineno, node.end_col_offset)
        )

    # ------------------------------------------------------------ values

    def value(self, node: ast.AST) -> Any:
        """The value of a name, an attribute or an element, without running the user's code; else `_MISSING`."""
        if isinstance(node, ast.Name):
            scope = self.scope if node.id in self.scope else self.frame.f_globals
            return scope.get(node.id, _MISSING)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute):
            return _attribute(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return _element(self.value(node.value), self.value(node.slice))
        return _MISSING

    def known(self, value: Any) -> Any:
        """The record of a tensor in the simulation: a stand-in, or what is noted about one that stays real."""
        if isinstance(value, StandIn) or not isinstance(value, Tensor):
            return value if isinstance(value, StandIn) else None
        _, shadow = self.stage.shadows.get(id(value), (None, None))
        return shadow or self.stage.themselves.get(id(value))

    def is_there(self, value: Any) -> bool:
        known = self.known(value)
        return known is not None and known._place is self.stage.home

    # ------------------------------------------------------------ the misplaced parts

    def misplaced(self, stray: Any, origin: Origin | None) -> tuple[Operand, ...]:
        """The operands that are the misplaced tensor, or come from it."""

        def is_same(value: Any) -> bool:
            return self._is(value, stray, origin)

        operands = [*_operands(self.node)]
        same = [each for each in operands if self._comes_from(each, is_same)]
        if not same:
            unknown = [each for each in operands if self._is_open(each)]
            unknown = [each for each in unknown if not self._comes_from(each, self._has_there)]
            same = unknown if len(unknown) == 1 else []
        called = getattr(self.node, "func", None)
        if any(each is called for each in same):  # `self` has what `self.layer` has
            same = [each for each in same if each is not getattr(called, "value", None)]
        return tuple(filter(None, (self._operand(each, is_same) for each in same)))

    def _is_open(self, node: ast.AST) -> bool:
        """Whether the device of an operand is not known: what a function returns."""
        if isinstance(node, ast.Attribute) and isinstance(self.node, ast.Call) and self.node.func is node:
            return False
        if isinstance(node, ast.Call):
            is_sent = isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda")
            return not is_sent and not self._is_module_there(self.value(node.func))
        return self.value(node) is _MISSING

    def _is_module_there(self, value: Any) -> bool:
        weights = [*nn.Module.parameters(value)] if isinstance(value, nn.Module) else []
        return bool(weights) and all(map(self.is_there, weights))

    def _comes_from(self, node: ast.AST, wanted: Callable[[Any], bool]) -> bool:
        """Whether an expression is a wanted tensor or module, or computed on the device of a wanted tensor."""
        return wanted(self.value(node)) or any(self._computed_from(each, wanted) for each in _sources_of(node))

    def _computed_from(self, node: ast.AST, wanted: Callable[[Any], bool]) -> bool:
        return not isinstance(self.value(node), nn.Module) and self._comes_from(node, wanted)

    def _is(self, value: Any, stray: Any, origin: Origin | None) -> bool:
        if type(value) in (list, tuple):
            return any(self._is(each, stray, origin) for each in value[:_MOST_VARIABLES])
        if isinstance(value, nn.Module):
            return any(self._is(each, stray, origin) for each in _tensors_of(value))
        known = self.known(value)
        if known is None or known._place is not CPU:
            return False
        its = known._origin
        return known is stray or (its is not None and origin is not None and its.root is origin.root)

    def named_by(self, kind: str) -> tuple[Operand, ...]:
        """The operands that a finding without a misplaced tensor is about."""
        node, function = self.node, getattr(self.node, "func", None)
        if kind == "numpy" and isinstance(function, ast.Attribute) and function.attr == "numpy":
            return tuple(filter(None, [self._operand(function.value, self._has_there)]))
        if kind not in ("numpy", "host"):
            return ()
        operands = [*_operands(node)]
        found = [each for each in operands if self._comes_from(each, self._has_there)]
        if not found:
            found = [each for each in operands if self._is_open(each)]
            found = found if len(found) == 1 else []
        return tuple(filter(None, (self._operand(each, self._has_there) for each in found)))

    def beside_a_generator(self) -> tuple[Operand, ...]:
        """The tensors of the device in a call that draws with a generator of the CPU, which is one of its arguments."""
        node = self.node
        if not isinstance(node, ast.Call):
            return ()
        given = next((self.value(each.value) for each in node.keywords if each.arg == "generator"), None)
        if not isinstance(given, torch.Generator) or place_of_generator(given) is not CPU:
            return ()
        operands = [each for each in _operands(node) if self.value(each) is not given]
        found = [each for each in operands if self._comes_from(each, self._has_there) or isinstance(each, ast.Call)]
        return tuple(filter(None, (self._operand(each, self._has_there) for each in found)))

    def _has_there(self, value: Any) -> bool:
        is_list = type(value) in (list, tuple)
        return any(map(self.is_there, value[:_MOST_VARIABLES])) if is_list else self.is_there(value)

    def _operand(self, node: Any, wanted: Callable[[Any], bool]) -> Operand | None:
        value = self.value(node)
        is_list = type(value) in (list, tuple)
        if is_list and not all(isinstance(each, Tensor) for each in value):
            return None
        what = "list" if is_list else "module" if isinstance(value, nn.Module) else "tensor"
        what = "call" if isinstance(node, ast.Call) else what
        written = self._writes_to(node)
        variable = self._kept_in(node) if written else self._variable(node, wanted)
        return Operand(self.span(node), self.text(node), what, variable, written, self._mover(node), self._method(node))

    def _method(self, operand: ast.AST) -> str:
        func = getattr(self.node, "func", None)
        return func.attr if isinstance(func, ast.Attribute) and func.value is operand else ""

    def _writes_to(self, operand: ast.AST) -> bool:
        """Whether the operation changes an operand in place."""
        node = self.node
        if isinstance(node, ast.Call):
            is_out = any(each.arg == "out" and each.value is operand for each in node.keywords)
            method = self._method(operand)
            return is_out or (method.endswith("_") and not method.endswith("__"))
        if isinstance(node, ast.AugAssign):
            return operand is node.target
        return isinstance(node, _Stored) and operand is node.elts[0]

    def _kept_in(self, node: Any) -> str:
        """The attribute or the element of a container that holds a tensor, which methods in place change."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        is_kept = isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(self.value(node), Tensor)
        return self.text(node) if is_kept else ""

    def _variable(self, node: Any, wanted: Callable[[Any], bool]) -> str:
        """The variable of the function from which an operand is computed."""
        code = self.frame.f_code
        own = {*code.co_varnames, *code.co_cellvars}
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in own]
        found = {each.id for each in names if wanted(self.value(each)) and not isinstance(self.value(each), nn.Module)}
        return found.pop() if len(found) == 1 else ""

    def _mover(self, node: Any) -> str:
        """The variable of an object that has a `to` of its own, and holds what this reads."""
        root = node
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if root is node or not isinstance(root, ast.Name) or root.id not in self.frame.f_code.co_varnames:
            return ""
        value = self.value(root)
        is_own = not isinstance(value, (Tensor, nn.Module)) and callable(getattr(type(value), "to", None))
        there = any(self.is_there(each) for each in getattr(value, "__dict__", {}).values())
        return root.id if is_own and not there else ""

    # ------------------------------------------------------------ the right device

    def references(self) -> tuple[str, ...]:
        found = dict.fromkeys(islice(self._references(), _MOST_REFERENCES + 1))
        return tuple(found)[:_MOST_REFERENCES]

    def _references(self) -> Iterator[str]:
        """Expressions for the device. Nearest first: what is computed with, a variable, an argument, the weights."""
        statement = self.source.statement_of(self.node) if self.source is not None and self.node is not None else None
        bound = _bound_in(statement, self.node)
        places = [*self._places_of(self.node, bound)]
        for each in places:
            if self.is_there(self.value(each)):
                yield f"{self.text(each)}.device"
        places += self._places_of(statement, bound)
        for each in places:
            if isinstance(each, ast.Attribute) and self._is_home(each.attr, self.value(each)):
                yield self.text(each)
        yield from (name for name, value in self._variables() if self._is_home(name, value))
        for name, value in self.scope.items():
            if self.is_there(value) and name not in bound:
                yield f"{name}.device"
        for each in places:
            yield from self._of_module(self.text(each), self.value(each))
        for name, value in self._variables():
            yield from self._of_module(name, value)

    def _places_of(self, node: ast.AST | None, bound: set[str]) -> list[ast.AST]:
        """The variables, attributes and elements in an expression, the shortest first; not those that it binds."""
        found = [each for each in ast.walk(node) if _is_place(each)] if node is not None else []
        found = [each for each in found if not bound & _names_in(each)]
        operands = [*_operands(node)]
        return sorted(found, key=lambda each: (each not in operands, len(ast.unparse(each))))

    def _variables(self) -> Iterator[tuple[str, Any]]:
        yield from self.scope.items()
        names = {*self.frame.f_code.co_names}
        for name, value in self.frame.f_globals.items():
            is_used = name in names or isinstance(value, (torch.device, str, nn.Module))
            if is_used and name not in self.scope and not name.startswith("__"):
                yield name, value

    def _is_home(self, name: str, value: Any) -> bool:
        if isinstance(value, str):
            return "device" in name.lower() and value in (self.stage.home.type, str(self.stage.home))
        is_home = isinstance(value, torch.device) and value.type == self.stage.home.type
        return is_home and (value.index or 0) == (self.stage.home.index or 0)

    def _of_module(self, text: str, value: Any) -> Iterator[str]:
        """The device of a module's weights, if all of them are there."""
        if not self._is_module_there(value):
            return
        own = next((name for name, each in vars(value)["_parameters"].items() if each is not None), None)
        yield f"{text}.{own}.device" if own is not None else f"next({text}.parameters()).device"


def _tensors_of(module: nn.Module) -> Iterator[Any]:
    for each in nn.Module.modules(module):
        for held in (vars(each).get("_parameters", {}), vars(each).get("_buffers", {}), vars(each)):
            yield from (value for value in held.values() if isinstance(value, Tensor))


def _attribute(holder: Any, name: str) -> Any:
    """An attribute, without calling properties."""
    if holder is _MISSING or isinstance(holder, Tensor):
        return _MISSING
    own = getattr(holder, "__dict__", {})
    for held in (own, *(own.get(kind, {}) for kind in ("_parameters", "_buffers", "_modules"))):
        if isinstance(held, Mapping) and name in held:
            return held[name]
    fields = getattr(holder, "_fields", ())
    if isinstance(holder, tuple) and name in fields:
        return holder[fields.index(name)]
    for kind in type(holder).__mro__:
        if name in vars(kind):
            value = vars(kind)[name]
            return value if isinstance(value, (Tensor, nn.Module, torch.device)) else _MISSING
    return _MISSING


def _element(holder: Any, key: Any) -> Any:
    if isinstance(holder, nn.Module) and type(key) is int:
        members = [*vars(holder)["_modules"].values()]
        return members[key] if -len(members) <= key < len(members) else _MISSING
    if type(holder) not in (dict, list, tuple) or not isinstance(key, (int, str)):
        return _MISSING
    try:
        return holder[key]
    except (KeyError, IndexError, TypeError):
        return _MISSING


# ---------------------------------------------------------------- source


class _Source:
    """The expressions of a file, by their positions in bytes."""

    def __init__(self, text: str) -> None:
        self.nodes: dict[tuple[int, int, int, int], ast.AST] = {}
        self.by_end: dict[tuple[int, int], ast.AST] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(ast.parse(text)):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, (ast.expr, ast.AugAssign)):
                at = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
                self.nodes.setdefault(at, node)
                if isinstance(node, ast.Call):
                    self.by_end.setdefault(at[2:], node)

    def node_at(self, position: tuple[int, int, int, int] | None) -> ast.AST | None:
        if position is None:
            return None
        found = self.nodes.get(position) or self.by_end.get(position[2:])
        parent = self.parents.get(found) if found is not None else None
        if isinstance(found, ast.Subscript) and isinstance(found.ctx, ast.Store) and isinstance(parent, ast.Assign):
            stored = found if len(parent.targets) > 1 else _Stored(found, parent.value)
            self.parents[stored] = parent
            return stored
        return found

    def statement_of(self, node: ast.AST) -> ast.AST:
        """The statement, or the header of a compound one, that a node is in: names are not bound by what it holds."""
        while not isinstance(node, ast.stmt) and node in self.parents:
            parent = self.parents[node]
            if isinstance(parent, (ast.FunctionDef, ast.ClassDef, ast.For, ast.With, ast.If, ast.While, ast.Try)):
                break
            node = parent
        return node


@lru_cache(maxsize=64)
def _parsed(file: str, lines: tuple[str, ...]) -> _Source | None:
    del file
    try:
        return _Source("".join(lines))
    except (SyntaxError, ValueError):
        return None


class _Stored(ast.Tuple):
    """The target and the value of `x[i] = y`."""

    def __init__(self, target: ast.Subscript, value: ast.expr) -> None:
        super().__init__([target.value, target.slice, value], ast.Load())
        ast.copy_location(self, target)


def _position(frame: FrameType) -> tuple[int, int, int, int] | None:
    positions = getattr(frame.f_code, "co_positions", None)  # from Python 3.11
    found = None if positions is None else next(islice(positions(), frame.f_lasti // 2, None), None)
    if found is None or None in found:
        return None
    line, end_line, column, end_column = found
    return line, column, end_line, end_column


def _characters(lines: list[str], line: int, column: int) -> int:
    """The column in characters of a column in bytes."""
    return len(lines[line - 1].encode()[:column].decode())


def _operands(node: ast.AST | None) -> Iterator[ast.expr]:
    """The parts of an expression that an operation computes with."""
    if isinstance(node, ast.Call):
        parts: Iterable[ast.expr] = (*node.args, *(each.value for each in node.keywords))
        yield from ([node.func.value] if isinstance(node.func, ast.Attribute) else [])
        yield node.func
    elif isinstance(node, ast.Compare):
        parts = (node.left, *node.comparators)
    elif isinstance(node, ast.AugAssign):
        parts = (node.target, node.value)
    elif isinstance(node, ast.Subscript):
        parts = (node.value, node.slice)
    else:
        parts = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)) if node else ()
    for each in parts:
        yield from _opened(each)


def _sources_of(node: ast.AST) -> tuple[ast.expr, ...]:
    """The parts of an expression whose device is that of its result."""
    if isinstance(node, ast.BinOp):
        return node.left, node.right
    if isinstance(node, ast.UnaryOp):
        return (node.operand,)
    if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in _VIEWS):
        return (node.value,)
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return (node.func.value,) if is_method and node.func.attr not in _ELSEWHERE else ()  # type: ignore[attr-defined]


def _opened(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, (ast.List, ast.Tuple)):
        for each in node.elts:
            yield from _opened(each)
    elif isinstance(node, ast.Dict):
        for each in node.values:
            yield from _opened(each)
    elif not isinstance(node, (ast.Starred, ast.Constant, ast.Slice)):
        yield node


def _is_place(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))


def _bound_in(statement: ast.AST | None, but_at: ast.AST | None) -> set[str]:
    """The names that expressions of a statement bind, and that have no value at `but_at` or in front of the statement.

    What the statement assigns is bound after it.
    """
    found: set[str] = set()
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.NamedExpr):
            found |= _names_in(node.target)
        elif isinstance(node, _BINDERS) and not any(each is but_at for each in ast.walk(node)):
            found |= _bound_by(node)
    return found


_BINDERS = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _bound_by(node: Any) -> set[str]:
    if isinstance(node, ast.Lambda):
        return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    return {name for each in node.generators for name in _names_in(each.target)}


def _names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
