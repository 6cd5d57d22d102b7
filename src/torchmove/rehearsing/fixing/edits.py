"""What an edit is: a place in a file, and what to do there. Plain data; `rewriting` applies it."""

from __future__ import annotations

from typing import NamedTuple

from torchmove.rehearsing.evidence import Span


class NotEdited(Exception):
    """An edit cannot be applied; its text is the reason."""


class AddDevice(NamedTuple):
    """Give a call `device=`; one that is given there is replaced if it is a literal or an attribute."""

    span: Span
    device: str


class SetDevice(NamedTuple):
    """Name the right device in a call that names a wrong one: `x.to("cpu")`, `torch.ones(2, device="cpu")`.

    With `only_made` it is applied to a call that makes a tensor, or names a second device; a tensor that is sent to the
    host by name may be there to save the device's memory.
    """

    span: Span
    device: str
    only_made: bool = False


class Append(NamedTuple):
    """Append a call to an expression: `x` becomes `x.to(y.device)`."""

    span: Span
    text: str


class Drop(NamedTuple):
    """Replace a call of a method by the object it is called on: `x.cpu()` becomes `x`."""

    span: Span


class ForEach(NamedTuple):
    """Append a call to every element of a list: `xs` becomes `[each.cpu() for each in xs]`."""

    span: Span
    text: str


class Before(NamedTuple):
    """Insert a statement before the statement that has this expression."""

    span: Span
    statement: str


class Keep(NamedTuple):
    """Assign the result of a call that a line discards to the object: `x.to(d)` becomes `x = x.to(d)`."""

    file: str
    line: int


class Register(NamedTuple):
    """Make a plain attribute that `__init__` assigns a buffer."""

    file: str
    owner: str  # the qualified name of the class
    name: str


Edit = AddDevice | SetDevice | Append | Drop | ForEach | Before | Keep | Register


def file_of(edit: Edit) -> str:
    return edit.file if isinstance(edit, (Keep, Register)) else edit.span.file
