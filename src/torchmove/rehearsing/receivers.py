"""Methods whose first parameter has another name than `self`: read as if it had that one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_RECEIVER = {"staticmethod", "classmethod"}


def with_self(tree: ast.Module) -> ast.Module:
    """The same tree, in which the object of a method is called `self` everywhere."""
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
    if any(each.id == "self" for each in inside):  # another object has that name there
        return
    for each in inside:
        each.id = "self" if each.id == first.arg else each.id
    first.arg = "self"


def _within(function: ast.AST, name: str) -> Iterator[ast.Name]:
    """The variables in a function, but for inner functions with a parameter of this name."""
    for each in ast.iter_child_nodes(function):
        if isinstance(each, ast.Name):
            yield each
        is_own = isinstance(each, (*_FUNCTIONS, ast.Lambda)) and name in _parameters(each)
        if not is_own:
            yield from _within(each, name)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
