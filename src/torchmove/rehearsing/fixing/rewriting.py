"""Edits applied to a source with libcst, which keeps every character that an edit does not change.

An edit that cannot be applied where it points raises `NotEdited`, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import libcst as cst
from libcst import metadata

from torchmove.rehearsing.evidence import Span
from torchmove.rehearsing.fixing.edits import (
    AddDevice,
    Append,
    Before,
    Drop,
    Edit,
    ForEach,
    Keep,
    NotEdited,
    Register,
    SetDevice,
)

Place = tuple[int, int, int, int]  # line and column of the beginning and of the end


def edited(source: bytes, edits: Sequence[Edit]) -> bytes:
    """The source with these edits."""
    module = _parsed(source)
    wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
    tree = _Tree(
        wrapper.resolve(metadata.PositionProvider), wrapper.resolve(metadata.ParentNodeProvider), module.default_newline
    )
    changes: dict[cst.CSTNode, list[Any]] = {}
    for edit in edits:
        node, change = _APPLIERS[type(edit)](tree, edit)
        changes.setdefault(node, []).append(change)
    result = module.visit(_Applying(changes))
    assert isinstance(result, cst.Module)
    found: bytes = result.bytes
    try:
        compile(found, "edited", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise NotEdited(f"the edited file would not compile: {error}") from None
    return found


def _parsed(source: bytes) -> cst.Module:
    try:
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError) as error:
        raise NotEdited(f"libcst cannot read it: {str(error).partition(chr(10))[0]}") from None
    if module.bytes != source:
        raise NotEdited("libcst would change other characters of it")
    return module


class _Applying(cst.CSTTransformer):  # type: ignore[misc]
    def __init__(self, changes: dict[cst.CSTNode, list[Any]]) -> None:
        super().__init__()
        self.changes = changes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        before: list[Any] = []
        for change in self.changes.get(original_node, ()):
            found = change(updated)
            if isinstance(found, list):  # statements, of which the last one is the changed one
                *more, updated = found
                before += more
            else:
                updated = found
        return cst.FlattenSentinel([*before, updated]) if before else updated


class _Tree(NamedTuple):
    """Where the nodes of a module are."""

    positions: Any
    parents: Any
    newline: str

    def place(self, node: cst.CSTNode) -> Place:
        at = self.positions[node]
        return at.start.line, at.start.column, at.end.line, at.end.column

    def at(self, span: Span, *kinds: type) -> Any:
        """The expression at a span; the outermost, if a statement of one expression is there."""
        wanted = span[1:]
        kinds = kinds or (cst.BaseExpression,)
        for node in self.positions:
            if isinstance(node, kinds) and self.place(node) == wanted:
                return node
        raise NotEdited("its expression was not found in the file")

    def call_at(self, span: Span) -> cst.Call:
        """The call at a span; of a chain over several lines Python knows the end only."""
        calls = [each for each in self.positions if isinstance(each, cst.Call) and self.place(each)[2:] == span[3:]]
        exact = [each for each in calls if self.place(each) == span[1:]]
        if not calls:
            raise NotEdited("no call was found there")
        return (exact or calls)[0]

    def statement_of(self, node: cst.CSTNode) -> tuple[cst.CSTNode, list[cst.CSTNode]]:
        """The statement that a node is in, as a line of its own, and the nodes on the way."""
        way: list[cst.CSTNode] = []
        while True:
            parent = self.parents.get(node)
            if parent is None:
                raise NotEdited("it is not in a statement")
            if isinstance(parent, (cst.IndentedBlock, cst.Module)):
                return node, way
            if isinstance(parent, (cst.SimpleStatementSuite, cst.Lambda, cst.CompFor, cst.BaseComp)):
                raise NotEdited("no statement can be inserted there")
            way.append(node)
            node = parent

    def parameters_around(self, node: cst.CSTNode) -> set[str]:
        """The parameters of the function that a node is in."""
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, cst.FunctionDef):
            parent = self.parents.get(parent)
        given = parent.params if parent is not None else cst.Parameters()
        return {each.name.value for each in (*given.posonly_params, *given.params, *given.kwonly_params)}

    def class_named(self, owner: str) -> cst.ClassDef:
        for node in self.positions:
            if isinstance(node, cst.ClassDef) and self._qualified(node) == owner:
                return node
        raise NotEdited(f"the class {owner} was not found")

    def _qualified(self, node: cst.CSTNode) -> str:
        names: list[str] = []
        while node is not None:
            if isinstance(node, cst.FunctionDef):
                names.insert(0, "<locals>")
            if isinstance(node, (cst.ClassDef, cst.FunctionDef)):
                names.insert(0, node.name.value)
            node = self.parents.get(node)
        return ".".join(names)


# ---------------------------------------------------------------- expressions


def _expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


def _add_device(tree: _Tree, edit: AddDevice) -> tuple[cst.CSTNode, Any]:
    call = tree.call_at(edit.span)
    given = _argument(call, "device")
    if given is not None and not (isinstance(given.value, cst.Name) and given.value.value == "None"):
        raise NotEdited("the call has a device= already")
    if _argument(call, "generator") is not None:
        raise NotEdited("its generator is one of the CPU")
    if any(each.star == "**" for each in call.args):
        raise NotEdited("the call takes **keywords, which may have a device")
    if any(isinstance(each.value, cst.GeneratorExp) and not each.value.lpar for each in call.args):
        raise NotEdited("its argument is a generator expression")
    return call, lambda now: _with_device(now, edit.device)


def _argument(call: cst.Call, name: str) -> cst.Arg | None:
    return next((each for each in call.args if each.keyword is not None and each.keyword.value == name), None)


def _with_device(call: cst.Call, device: str) -> cst.Call:
    given = _argument(call, "device")
    if given is not None:
        args = [each.with_changes(value=_expression(device)) if each is given else each for each in call.args]
        return call.with_changes(args=args)
    added = cst.Arg(_expression(device), cst.Name("device"), equal=_EQUAL)
    if not call.args:
        return call.with_changes(args=[added])
    *others, last = call.args
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(last.comma, cst.Comma):  # a trailing comma, or a call over several lines: the new one is after it
        added = added.with_changes(comma=last.comma)
    else:
        added = added.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*others, last.with_changes(comma=comma), added])


_NO_SPACE = cst.SimpleWhitespace("")
_EQUAL = cst.AssignEqual(whitespace_before=_NO_SPACE, whitespace_after=_NO_SPACE)
_SENDS = {"to", "cuda", "cpu"}


def _set_device(tree: _Tree, edit: SetDevice) -> tuple[cst.CSTNode, Any]:
    call = tree.call_at(edit.span)
    given = _argument(call, "device")
    is_to = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
    if given is None and is_to and call.args and call.args[0].keyword is None and not call.args[0].star:
        given = call.args[0]
    if given is None:
        raise NotEdited("the call names no device")
    code = cst.Module([]).code_for_node
    if is_to and edit.only_made and "cpu" in code(given.value):
        raise NotEdited("it is sent to the host by name")
    if isinstance(call.func, cst.Attribute) and edit.device.startswith(f"{code(call.func.value)}."):
        raise NotEdited("it would be sent to its own device")
    if isinstance(given.value, cst.Name) and given.value.value in tree.parameters_around(call):
        raise NotEdited("the device is an argument of the function")

    def change(now: cst.Call) -> cst.Call:
        index = next(index for index, each in enumerate(call.args) if each is given)
        args = [*now.args]
        args[index] = args[index].with_changes(value=_expression(edit.device))
        return now.with_changes(args=args)

    return call, change


def _append(tree: _Tree, edit: Append) -> tuple[cst.CSTNode, Any]:
    node = tree.at(edit.span)
    parent = tree.parents.get(node)
    if isinstance(parent, (cst.Del, cst.Annotation, cst.AssignTarget, cst.AugAssign)) and (
        getattr(parent, "target", None) is node
    ):
        raise NotEdited("it is assigned to there")
    if isinstance(parent, cst.Arg) and isinstance(node, cst.GeneratorExp):
        raise NotEdited("it is a generator expression")
    return node, lambda now: _called(now, edit.text)


def _called(node: cst.BaseExpression, text: str) -> cst.BaseExpression:
    """`text`, such as `.to(x.device)`, appended to an expression."""
    suffix = cst.parse_expression(f"_{text}")
    bare = node
    if not isinstance(node, _POSTFIX) and not node.lpar:
        bare = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return _rebased(suffix, bare)


_POSTFIX = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.List,
    cst.Dict,
    cst.Set,
    cst.ListComp,
    cst.DictComp,
    cst.SetComp,
)


def _rebased(suffix: Any, base: cst.BaseExpression) -> cst.BaseExpression:
    """`_.f(x).g()` with another expression in the place of `_`."""
    if isinstance(suffix, cst.Name):
        return base
    if isinstance(suffix, cst.Call):
        return suffix.with_changes(func=_rebased(suffix.func, base))
    return suffix.with_changes(value=_rebased(suffix.value, base))


def _drop(tree: _Tree, edit: Drop) -> tuple[cst.CSTNode, Any]:
    call = tree.call_at(edit.span)
    if not isinstance(call.func, cst.Attribute):
        raise NotEdited("no method is called there")

    def change(now: cst.Call) -> cst.BaseExpression:
        value = cst.ensure_type(now.func, cst.Attribute).value
        return value.with_changes(lpar=[*now.lpar, *value.lpar], rpar=[*value.rpar, *now.rpar])

    return call, change


def _for_each(tree: _Tree, edit: ForEach) -> tuple[cst.CSTNode, Any]:
    node = tree.at(edit.span)

    def change(now: cst.BaseExpression) -> cst.BaseExpression:
        comprehension = cst.ensure_type(cst.parse_expression(f"[each{edit.text} for each in _]"), cst.ListComp)
        return comprehension.with_changes(for_in=comprehension.for_in.with_changes(iter=now))

    return node, change


# ---------------------------------------------------------------- statements


def _before(tree: _Tree, edit: Before) -> tuple[cst.CSTNode, Any]:
    node = tree.at(edit.span, cst.BaseExpression, cst.AugAssign)
    statement, way = tree.statement_of(node)
    inner = way[-1] if way else node
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(statement, cst.SimpleStatementLine) and first is not inner:
        raise NotEdited("another statement is before it on its line")
    if not isinstance(statement, (cst.SimpleStatementLine, cst.For, cst.With)):
        raise NotEdited("no statement can be inserted there")
    if isinstance(statement, cst.For) and inner is not statement.iter:
        raise NotEdited("no statement can be inserted there")

    def change(now: Any) -> list[Any]:
        line = cst.ensure_type(cst.parse_statement(edit.statement), cst.SimpleStatementLine)
        blank = [*now.leading_lines]
        count = next((index for index, each in enumerate(blank) if each.comment is not None), len(blank))
        return [line.with_changes(leading_lines=blank[:count]), now.with_changes(leading_lines=blank[count:])]

    return statement, change


def _keep(tree: _Tree, edit: Keep) -> tuple[cst.CSTNode, Any]:
    for node in tree.positions:
        if isinstance(node, cst.Expr) and tree.place(node)[0] == edit.line:
            receiver = _receiver(node.value)
            parent = tree.parents[node]
            if not isinstance(parent, cst.SimpleStatementLine):
                raise NotEdited("it is not a statement of its own line")
            if isinstance(receiver, (cst.Name, cst.Attribute, cst.Subscript)):
                targets = [cst.AssignTarget(receiver.with_changes(lpar=[], rpar=[]))]
                return node, partial(_assigned_to, targets)
    raise NotEdited("no variable is sent there")


def _assigned_to(targets: list[cst.AssignTarget], now: cst.Expr) -> cst.Assign:
    return cst.Assign(targets, now.value, semicolon=now.semicolon)


def _receiver(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The object of `x.to(...)`."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    return node.func.value if node.func.attr.value in _SENDS else None


def _register(tree: _Tree, edit: Register) -> tuple[cst.CSTNode, Any]:
    owner = tree.class_named(edit.owner)
    here = [each for each in tree.positions if _target(each) is not None and _assigned(each) == edit.name]
    ours = [each for each in here if _within(tree, each, owner) == "__init__"]
    if len(ours) != 1 or not isinstance(ours[0], (cst.Assign, cst.AnnAssign)):
        raise NotEdited(f"__init__ of {edit.owner} does not assign self.{edit.name} once")
    assign = ours[0]
    line = tree.parents[assign]
    if not isinstance(line, cst.SimpleStatementLine):
        raise NotEdited("it is not a statement of its own line")
    _check_after_super(tree, assign, owner)

    def change(now: Any) -> Any:
        argument = cst.Arg(now.value, comma=_COMMA)
        persistent = cst.Arg(cst.Name("False"), cst.Name("persistent"), equal=_EQUAL)
        target = cst.ensure_type(_target(now), cst.Attribute)
        call = cst.Call(
            cst.Attribute(target.value, cst.Name("register_buffer")),
            [cst.Arg(cst.SimpleString(f'"{edit.name}"'), comma=_COMMA), argument, persistent],
        )
        return cst.Expr(call, semicolon=now.semicolon)

    return assign, change


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _target(node: Any) -> cst.BaseExpression | None:
    """The attribute that a statement assigns alone."""
    if isinstance(node, cst.Assign):
        target = node.targets[0].target if len(node.targets) == 1 else None
    else:
        target = node.target if isinstance(node, cst.AnnAssign) and node.value is not None else None
    return target if isinstance(target, cst.Attribute) and getattr(target.value, "value", "") == "self" else None


def _assigned(node: Any) -> str:
    target = _target(node)
    return target.attr.value if isinstance(target, cst.Attribute) else ""


def _within(tree: _Tree, node: cst.CSTNode, owner: cst.ClassDef) -> str:
    """The method of a class that a statement is in; "" if it is in none of this class."""
    method = ""
    parent = tree.parents.get(node)
    while parent is not None and parent is not owner:
        if isinstance(parent, cst.FunctionDef):
            method = parent.name.value
        elif isinstance(parent, cst.ClassDef):
            return ""
        parent = tree.parents.get(parent)
    return method if parent is owner else ""


def _check_after_super(tree: _Tree, assign: cst.CSTNode, owner: cst.ClassDef) -> None:
    for node in tree.positions:
        if isinstance(node, cst.Call) and _within(tree, node, owner) == "__init__":
            is_init = isinstance(node.func, cst.Attribute) and node.func.attr.value == "__init__"
            if is_init and tree.place(node) > tree.place(assign):
                raise NotEdited("it is assigned before super().__init__()")


_APPLIERS: dict[type, Any] = {
    AddDevice: _add_device,
    SetDevice: _set_device,
    Append: _append,
    Drop: _drop,
    ForEach: _for_each,
    Before: _before,
    Keep: _keep,
    Register: _register,
}
