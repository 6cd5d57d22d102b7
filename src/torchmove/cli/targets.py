"""A target: `package.module:factory` or `path/to/file.py:factory`. The factory is called and returns the objects.

It returns one object, a tuple or list of objects, or a dict of objects by name: paths begin with that name then.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from torchmove._errors import TorchmoveError


class NotMade(TorchmoveError):
    """Loading the file or calling the function failed."""


class Target(NamedTuple):
    spec: str
    where: str  # the file or module
    factory: str

    def made(self) -> Any:
        """What the factory returns. What it prints goes to stderr: stdout is the command's own."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                made = self._function()()
        except (Exception, SystemExit) as error:
            if isinstance(error, click.ClickException):
                raise
            said = (str(error).strip().splitlines() or [""])[0]
            raise NotMade(f"{self.spec} raised {type(error).__name__}: {said}") from error
        if made is None:
            raise click.UsageError(
                f"{self.spec} returned nothing: let it return the objects, as in `return model, optimizer`"
            )
        return made

    def _function(self) -> Callable[[], Any]:
        module = _file(Path(self.where)) if self.where.endswith(".py") else _module(self.where)
        try:
            function = attrgetter(self.factory)(module)
        except AttributeError:
            raise click.UsageError(f"{self.where} has no {self.factory}: it has {_callables(module)}") from None
        if not callable(function):
            raise click.UsageError(
                f"{self.spec} is a {type(function).__name__}: name a function that returns the objects"
            )
        return function  # type: ignore[no-any-return]


def target(text: str) -> Target:
    where, colon, factory = text.rpartition(":")
    if not (colon and where and factory):
        raise click.BadParameter(f"{text!r} names no function: write file.py:function or package.module:function")
    return Target(text, where, factory)


def named(made: Any) -> dict[str, Any]:
    """The objects under names: a dict's own, else one by the kind of each."""
    from torchmove._names import names_of

    if isinstance(made, dict) and all(isinstance(name, str) and name.isidentifier() for name in made):
        return made
    return names_of(listed(made), None)


def listed(made: Any) -> tuple[Any, ...]:
    if isinstance(made, dict):
        return tuple(made.values())
    # A named tuple is one object; a bare tuple or list is several.
    return tuple(made) if type(made) in (tuple, list) else (made,)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise click.UsageError(f"there is no file {path}")
    # As if it had been started: what lies beside it can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and something that it needs is not
        raise click.UsageError(f"there is no module {name}; for a file write {name}.py:function") from None


def _callables(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return ", ".join(own) or "no functions"
