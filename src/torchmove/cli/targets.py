"""The TARGET argument: `package.module:factory` or `path/to/file.py:factory`. The factory returns the objects.

It returns one object, a tuple or list of objects, or a dict of objects by name, with which their paths begin.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from torchmove.cli.output import described, reserve_stdout
from torchmove.errors import TorchmoveError

_NO_DEVICE = re.compile(r"not compiled with \w+ enabled|no NVIDIA (driver|GPU)|No \w+ GPUs are available")
_NOTHING = "returned None. Fix: return the objects, as in `return model, optimizer`"


class TargetFailed(TorchmoveError):
    """Loading the file or calling the function failed."""


class Target(NamedTuple):
    """A function of the user's that returns objects."""

    spec: str
    where: str  # the file or module
    factory: str
    folder: Path  # the working directory of the command

    def files(self) -> list[Path]:
        """The program's file; for a module that is not imported yet, the possible files."""
        if self.where.endswith(".py"):
            return [self.folder / self.where]
        place = self.folder.joinpath(*self.where.split("."))
        loaded = getattr(sys.modules.get(self.where), "__file__", None)
        return [place.with_name(f"{place.name}.py"), place / "__init__.py", *([Path(loaded)] if loaded else [])]

    def made(self) -> Any:
        """What the factory returns."""
        reserve_stdout()
        sys.argv = [self.where]  # the program must not see the command's arguments
        folders = {self.folder.resolve(), *(file.resolve().parent for file in self.files())}
        try:
            function = self._function()
        except (click.ClickException, KeyboardInterrupt):
            raise
        except BaseException as error:
            if "relative import with no known parent" in str(error):
                raise click.UsageError(f"{self.where} belongs to a package. Fix: {_as_module(self)}") from None
            place = _place_of(error, folders)
            raise TargetFailed(f"cannot import {self.where}: {described(error)}{place}{_hint(error)}") from error
        try:
            made = function()
        except (click.ClickException, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise TargetFailed(
                f"{self.spec} raised {described(error)}{_place_of(error, folders)}{_hint(error)}"
            ) from error
        if made is None:
            raise click.UsageError(f"{self.spec} {_NOTHING}")
        if inspect.iscoroutine(made):
            made.close()
            raise click.UsageError(f"{self.spec} is async. Fix: use an ordinary function that returns the objects")
        return made

    def named(self) -> dict[str, Any]:
        """The objects by name: the names of a dict, or names derived from their types."""
        from torchmove.surveying.paths import check, names_of

        made = self.made()
        if isinstance(made, dict) and all(isinstance(name, str) and name.isidentifier() for name in made):
            found = made
        else:
            found = names_of(several(made), None)
        found = {name: each for name, each in found.items() if each is not None}
        if not found:
            raise click.UsageError(f"{self.spec} {_NOTHING}")
        for name, each in found.items():
            try:
                check([each])
            except TypeError as error:
                raise click.UsageError(f"{self.spec} returned {name}: {error}") from None
        return found

    def _function(self) -> Callable[[], Any]:
        module = _file(Path(self.where)) if self.where.endswith(".py") else _module(self.where)
        try:
            function = attrgetter(self.factory)(module)
        except AttributeError:
            raise click.UsageError(f"{self.where} has no {self.factory}; it has {_callables(module)}") from None
        if not callable(function) or _is_model(function):
            raise click.UsageError(
                f"{self.spec} is {type(function).__name__}, not a function. Fix: name one that returns the objects"
            )
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise click.UsageError(
                f"{self.spec} has required arguments ({error}). Fix: name a function without required arguments"
            ) from None
        except ValueError:  # a callable without a signature
            pass
        return function  # type: ignore[no-any-return]


def target(text: str) -> Target:
    """Parse a TARGET argument."""
    where, colon, factory = text.rpartition(":")
    if not (colon and where and factory) or (where.startswith(".") and not where.endswith(".py")):
        raise click.BadParameter(f"{text!r} does not name a function. Fix: file.py:function or package.module:function")
    return Target(text, where, factory, Path.cwd())


class ScriptFile(NamedTuple):
    """A script of the user's, which is run."""

    path: str
    folder: Path

    def files(self) -> list[Path]:
        return [self.folder / self.path]


def target_or_script(text: str) -> Target | ScriptFile:
    """Parse the TARGET of `rehearse`, which may be a script."""
    if not text.endswith(".py"):
        return target(text)
    if not Path(text).is_file():
        raise click.BadParameter(f"the file {text} does not exist")
    return ScriptFile(text, Path.cwd())


def several(made: Any) -> tuple[Any, ...]:
    # A named tuple or a dict of tensors is one object; a plain tuple or list is several.
    return tuple(made) if type(made) in (tuple, list) else (made,)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise click.UsageError(f"the file {path} does not exist")
    # As for a script: modules in its folder can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _place_of(error: BaseException, folders: set[Path]) -> str:
    """The innermost line of an error's traceback that is in one of these folders."""
    lines = [
        f"{os.path.relpath(frame.filename)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith("<")  # importlib
        and folders & {*Path(frame.filename).resolve().parents}
    ]
    return f" (at {lines[-1]})" if lines else ""


def _hint(error: BaseException) -> str:
    """The remedy for an error of a program that is imported instead of run."""
    if isinstance(error, SystemExit):
        return '. Fix: put the main program under `if __name__ == "__main__":`'
    if _NO_DEVICE.search(str(error)):
        return ". Fix: use the device only inside the step; the function runs on this machine, which does not have it"
    return ""


def _is_model(each: Any) -> bool:
    """Whether it is an nn.Module, which is callable, but not a function that returns the objects."""
    nn: Any = sys.modules.get("torch.nn")  # if it is not imported, this cannot be a module
    return nn is not None and isinstance(each, nn.Module)


def _as_module(target: Target) -> str:
    """The TARGET for a file that imports from its own package."""
    path = Path(target.where).resolve()
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    return f"run the command in {folder} with {'.'.join(names)}:{target.factory}"


def _module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, and one that it imports does not
        raise click.UsageError(f"no module named {name}. Fix: for a file, {name}.py:function") from None


def _callables(module: ModuleType) -> str:
    from torchmove.formatting import listed

    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return listed(own) or "no functions"
