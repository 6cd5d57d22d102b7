"""Paths from the given objects to what is in them, and the single steps, which readers yield as children.

A path fetches what it leads to, and prints as Python code. It begins with the name that the caller has for the object,
so that it can be pasted. It is a linked list from child to parent, so that making one costs the same at any depth.
(Compare paths by `is`: `==` would recurse.) `how` names the kind of step; a table says how each kind fetches and
prints.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import partial
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove.internals.frames import callers_frame, variables_of
from torchmove.results import Result

ROOT = "root"
ATTRIBUTE = "attribute"
ITEM = "item"
CALL = "call"
CELL = "cell"
MEMBER = "member"
KEY = "key"
KEYED = "keyed"
REFERENT = "referent"


class Path(NamedTuple):
    """One step, and the path before it. `what` is the name, key or index of the step.

    A key that is itself a tensor of the state (`optimizer.state[model.weight]`) is represented by its own path.
    """

    before: Path | None
    how: str
    what: Any

    def __str__(self) -> str:
        # A loop, not recursion: a path may have 100 000 steps. Most kinds append text; a few also prepend some.
        text: list[str] = []
        for step in self.steps():
            prefix, suffix = step.words()
            if prefix:
                text = [prefix, *text]
            text.append(suffix)
        return "".join(text)

    def __repr__(self) -> str:
        return f"<{self}>"

    def words(self) -> tuple[str, str]:
        """How the last step prints: the text before and after that of the steps before it."""
        return _KINDS[self.how].text(self.what)

    def steps(self) -> Iterator[Path]:
        """The steps of this path, the root first."""
        chain: list[Path] = []
        step: Path | None = self
        while step is not None:
            chain.append(step)
            step = step.before
        return iter(chain[::-1])

    def fetch(self, roots: Mapping[str, Any]) -> Any:
        """The object that the path leads to, given the objects that paths start with."""
        value: Any = None
        for step in self.steps():
            if step.how is ROOT:
                value = roots[step.what]
            elif step.how is KEYED:
                value = value[step.what.fetch(roots)]
            else:
                value = _KINDS[step.how].fetch(value, step.what)
        return value

    def names(self) -> Iterator[str]:
        """The names and string keys on this path, the last step first."""
        step: Path | None = self
        while step is not None:
            if type(step.what) is str:
                yield step.what
            step = step.before


# Like Path(...), but from a tuple of the three, which is cheaper: every tensor of a state gets one.
make_path = partial(tuple.__new__, Path)


def root_path(name: str) -> Path:
    """The path of a given object."""
    return Path(None, ROOT, name)


NOWHERE = root_path("...")  # for an object that is not part of the state


def matcher(pattern: str) -> Callable[[Path], bool]:
    """A function that tells whether a path, or a path that it continues, matches a pattern. `*` matches any text.

    The name in a state_dict, `model.0.weight`, matches as well as the printed path, `model[0].weight`, and each without
    the name of the given object.
    """
    fits = text_matcher(pattern)
    return lambda path: any(map(fits, texts_of(path)))


def text_matcher(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a path's text, or the beginning of one, matches a pattern."""
    text = ".*".join(re.escape(part) for part in pattern.split("*"))
    # A match must end at a step, so that `model.a` does not match `model.ab`.
    fits = re.compile(rf"{text}(?=$|[.\[])", re.DOTALL)
    return lambda each: fits.match(each) is not None


def texts_of(path: Path) -> tuple[str, ...]:
    """How a path may be written: as it prints, as in a state_dict, and each also without the name it begins with."""
    printed = str(path)
    dotted = _INDEX.sub(r".\1\2", printed)
    below = [each[len(root) :].lstrip(".") for each in (printed, dotted) for root in [next(path.steps()).what]]
    return (printed, dotted, *below)


_INDEX = re.compile(r"\[(?:(\d+)|'([^']*)')\]")


class _Kind(NamedTuple):
    fetch: Callable[[Any, Any], Any]
    text: Callable[[Any], tuple[str, str]]


def _attribute_text(name: str) -> tuple[str, str]:
    return ("", f".{name}") if name.isidentifier() else ("getattr(", f", {name!r})")


_KINDS = {
    ROOT: _Kind(lambda value, _: value, lambda name: ("", name)),
    ATTRIBUTE: _Kind(getattr, _attribute_text),
    ITEM: _Kind(lambda value, key: value[key], lambda key: ("", f"[{key!r}]")),
    KEYED: _Kind(lambda value, key: value[key], lambda path: ("", f"[{path}]")),
    CALL: _Kind(lambda value, name: getattr(value, name)(), lambda name: ("", f".{name}()")),
    CELL: _Kind(
        lambda value, index: value.__closure__[index].cell_contents,
        lambda index: ("", f".__closure__[{index}].cell_contents"),
    ),
    MEMBER: _Kind(lambda value, index: list(value)[index], lambda index: ("list(", f")[{index}]")),
    KEY: _Kind(lambda value, index: list(value)[index], lambda index: ("list(", f")[{index}]")),
    REFERENT: _Kind(
        lambda value, index: gc.get_referents(value)[index],
        lambda index: ("gc.get_referents(", f")[{index}]"),
    ),
}


# ---------------------------------------------------------------- what a reader yields: children and diagnostics

# "host": the library that owns it computes with it on the CPU. "data": a dataset, which is not searched.
Role = Literal["parameter", "buffer", "gradient", "state", "computed", "host", "data", "tensor"]


class Owner(NamedTuple):
    """What a tensor belongs to in an optimizer: a parameter (by id), a group, or the optimizer itself.

    `parameter` is set for optimizer state and for gradients. It is None for a tensor of a group; `group` is None too
    for a tensor of the optimizer itself.
    """

    optimizer: Any  # None for a gradient
    group: Mapping[str, Any] | None
    parameter: int | None


class Child(NamedTuple):
    """An object in a holder, one step away. Role and owner also hold for everything in it that has none of its own."""

    how: str
    what: Any
    value: Any
    role: Role | None = None
    owner: Owner | None = None


class Children(NamedTuple):
    """Children of one kind in a mapping, each reached by its key; mostly tensors. Cheaper than one `Child` for each.

    `at` is a step between the holder and the mapping.
    """

    how: str
    entries: Mapping[Any, Any]
    role: Role
    owner: Owner | None = None
    at: tuple[str, Any] | None = None


class ParameterStates(NamedTuple):
    """What an optimizer keeps for each parameter, nearly always a dict."""

    optimizer: Any
    entries: Mapping[Tensor, Any]
    group_of: Mapping[int, Mapping[str, Any]]  # by the parameter's id

    def groups(self) -> list[Mapping[str, Any]]:
        return [self.group_of.get(id(parameter), _NO_GROUP) for parameter in self.entries]

    def one_by_one(self) -> Iterator[Child | Children]:
        """The same, as one child for each parameter, for a traversal that needs the details."""
        for (parameter, state), group in zip(self.entries.items(), self.groups(), strict=True):
            owner = Owner(self.optimizer, group, id(parameter))
            if isinstance(state, dict):
                yield Children(ITEM, state, "state", owner, (KEYED, parameter))
            else:
                yield Child(KEYED, parameter, state, "state", owner)


_NO_GROUP: dict[str, Any] = {}

# Like Child(...) and Children(...), but from a tuple of all fields, which is cheaper.
make_child = partial(tuple.__new__, Child)
make_children = partial(tuple.__new__, Children)


def attribute(name: str, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """A child that is reached as `holder.name`, for a reader to yield.

    Args:
        name: the name of the attribute.
        value: its value: a tensor, or another holder.
        role: the role of the tensors in it: "parameter", "buffer", "gradient", "state" or "tensor".
        owner: what they belong to in an optimizer, for optimizer state.

    Returns:
        The child to yield.

    Examples:
        >>> import torchmove as tm
        >>> tm.attribute("frames", [1, 2]).what
        'frames'
    """
    return Child(ATTRIBUTE, name, value, role, owner)


def item(key: Any, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """A child that is reached as `holder[key]`, for a reader to yield.

    Args:
        key: the key of the item.
        value: as for `tm.attribute`.
        role: as for `tm.attribute`.
        owner: as for `tm.attribute`.

    Returns:
        The child to yield.

    Examples:
        >>> import torchmove as tm
        >>> tm.item("frames", [1, 2]).what
        'frames'
    """
    return Child(ITEM, key, value, role, owner)


class Inner(NamedTuple):
    """Children one step further down, for a reader that knows more about them than the reader of their container."""

    children: Iterable[Child | Children | ParameterStates]
    container: Any


class Diagnostic(NamedTuple):
    """Something that a reader reports about its holder: R0xx prevents a move, N0xx is a note.

    With a device, it prevents only a move that leaves that device and computes elsewhere.
    """

    code: str
    why: str
    remedy: str = ""
    device: torch.device | None = None


class Reader(Protocol):
    """Returns what is in one kind of holder, from stored state alone: no property and no user code runs.

    `Children` that are returned instead of yielded are the whole content.
    """

    def __call__(self, holder: Any, /) -> Iterable[Child | Children | ParameterStates | Diagnostic] | Children: ...


# ---------------------------------------------------------------- the names of the given objects

_NAMED_BY_KIND = (nn.Module, Optimizer)  # named "model" and "optimizer" where the caller has no name for them
# Given by mistake: one-shot iterators, views, classes, numbers and names.
_NOT_HOLDERS = (Iterator, KeysView, ValuesView, ItemsView, Result, type, str, bytes, int, float)


def given(objects: Sequence[Any]) -> dict[str, Any]:
    """The objects, by the names that the caller of the public function has for them."""
    check(objects)
    return names_of(objects, callers_frame())


def check(objects: Collection[Any]) -> None:
    """Raise a TypeError for an object that cannot be searched for tensors, such as a str or a generator."""
    if not objects:
        raise TypeError("no objects were given. Fix: pass them, as in tm.move(model, optimizer, to=...)")
    for each in objects:
        if isinstance(each, str):
            raise TypeError(f"a str holds no tensors. {_meant(each)}")
        if isinstance(each, _NOT_HOLDERS):
            raise TypeError(
                f"cannot search {type(each).__name__} for tensors. Fix: pass the module, or list(...) of the iterator"
            )


def _meant(text: str) -> str:
    try:
        torch.device(text)
    except RuntimeError:
        return "Fix: pass the object itself"
    return f"Fix: to={text!r}"


def names_of(
    objects: Sequence[Any], frame: FrameType | None, parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A name for each object, in order; an object that is given twice appears once.

    The caller's variable, else the name in `parameters` (of a function that receives the objects), else one for its
    kind.
    """
    named: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    variables = {id(each): name for name, each in (parameters or {}).items() if not isinstance(each, _NAMED_BY_KIND)}
    if frame is not None:
        variables |= _variables(frame)
    for each in _once(objects):
        named[_unused(variables.get(id(each)) or _by_kind(each), named, counts)] = each
    return named


def _once(objects: Sequence[Any]) -> Iterable[Any]:
    return {id(each): each for each in objects}.values()


def _variables(frame: FrameType) -> dict[int, str]:
    """The caller's names for objects, by their ids; local names take precedence over global ones."""
    variables = (*frame.f_globals.items(), *variables_of(frame).items())
    return {id(value): name for name, value in variables if not name.startswith("_")}


def _by_kind(value: Any) -> str:
    if isinstance(value, nn.Module):
        return "model"
    if isinstance(value, Optimizer):
        return "optimizer"
    return type(value).__name__.lower()


def _unused(name: str, taken: Collection[str], counts: Counter[str]) -> str:
    """The name, or the next of name_2, name_3, ..."""
    unused = name
    while unused in taken:
        counts[name] += 1
        unused = f"{name}_{counts[name] + 1}"
    return unused
