"""A path leads from a given object to something in it. It fetches that, and prints as Python code.

A path is a linked list from child to parent, so that making one costs the same at any depth. (Compare paths by `is`:
`==` would recurse.) `how` names the kind of step; a table at the end says how each kind fetches and prints.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

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

    The name in a state_dict, `model.0.weight`, matches as well as the printed path, `model[0].weight`.
    """
    text = ".*".join(re.escape(part) for part in pattern.split("*"))
    # A match must end at a step, so that `model.a` does not match `model.ab`.
    fits = re.compile(rf"{text}(?=$|[.\[])", re.DOTALL)

    def match(path: Path) -> bool:
        text = str(path)
        return fits.match(text) is not None or fits.match(_INDEX.sub(r".\1\2", text)) is not None

    return match


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
