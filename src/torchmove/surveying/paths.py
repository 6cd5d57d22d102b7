"""A path leads from a given object to something in it; it fetches, and prints as Python one can paste.

A path is a linked list, child to parent, so that making one costs the same at any depth. (Told apart by `is`: comparing
two of them would go down both.) `how` names the kind of
step; what each kind does and how it prints is in one table at the end.
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

    A key that is itself a tensor of the state (`optimizer.state[model.weight]`) is not held but named, by its own path.
    """

    before: Path | None
    how: str
    what: Any

    def __str__(self) -> str:
        # A loop, not recursion: paths may be 100 000 steps deep. Most kinds append; a few wrap what came before.
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
        """How the last step prints: what goes before all that came before, and what behind."""
        return _KINDS[self.how].text(self.what)

    def steps(self) -> Iterator[Path]:
        """This path's steps, the root first."""
        chain: list[Path] = []
        step: Path | None = self
        while step is not None:
            chain.append(step)
            step = step.before
        return iter(chain[::-1])

    def fetch(self, roots: Mapping[str, Any]) -> Any:
        """What the path leads to, given the objects that paths begin with."""
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
        """The names and string keys on the way, the nearest first."""
        step: Path | None = self
        while step is not None:
            if type(step.what) is str:
                yield step.what
            step = step.before


# Like Path(...), from a tuple of the three, and cheaper: every tensor of a state gets one.
make_path = partial(tuple.__new__, Path)


def root_path(name: str) -> Path:
    """The path of a given object."""
    return Path(None, ROOT, name)


NOWHERE = root_path("...")  # of something that is not part of the state


def matcher(pattern: str) -> Callable[[Path], bool]:
    """Does a path, or one on the way to it, match? Only `*` is special: it stands for any text.

    `model.0.weight`, the name in a state_dict, is as good as `model[0].weight`, the path as it prints.
    """
    text = ".*".join(re.escape(part) for part in pattern.split("*"))
    # What follows a match must be a further step into it, so that `model.a` does not match `model.ab`.
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
