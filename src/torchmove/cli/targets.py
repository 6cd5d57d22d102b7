"""A target: `package.module:factory` or `path/to/file.py:factory`. The factory is called and returns the objects.

It returns one object, a tuple or list of objects, or a dict of objects by name: paths begin with that name then.
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

from torchmove.cli.answers import keep_answers_apart
from torchmove.cli.output import described
from torchmove.errors import TorchmoveError

_NO_DEVICE = re.compile(r"not compiled with \w+ enabled|no NVIDIA (driver|GPU)|No \w+ GPUs are available")
_NOTHING = "returned nothing: let it return the objects, as in `return model, optimizer`"


class NotMade(TorchmoveError):
    """Loading the file or calling the function failed."""


class Target(NamedTuple):
    spec: str
    where: str  # the file or module
    factory: str
    folder: Path  # where the command was given

    def files(self) -> list[Path]:
        """Where the program lies: of a module that is not loaded yet, where it may lie."""
        if self.where.endswith(".py"):
            return [self.folder / self.where]
        place = self.folder.joinpath(*self.where.split("."))
        loaded = getattr(sys.modules.get(self.where), "__file__", None)
        return [place.with_name(f"{place.name}.py"), place / "__init__.py", *([Path(loaded)] if loaded else [])]

    def made(self) -> Any:
        """What the factory returns."""
        keep_answers_apart()
        sys.argv = [self.where]  # the command's own arguments are none of the program's
        folders = {self.folder.resolve(), *(file.resolve().parent for file in self.files())}
        try:
            function = self._function()
        except (click.ClickException, KeyboardInterrupt):
            raise
        except BaseException as error:
            if "relative import with no known parent" in str(error):
                raise click.UsageError(f"{self.where} belongs to a package: {_as_module(self)}") from None
            place = _place_of(error, folders)
            raise NotMade(f"cannot import {self.where}: {described(error)}{place}{_hint(error)}") from error
        try:
            made = function()
        except (click.ClickException, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise NotMade(f"{self.spec} raised {described(error)}{_place_of(error, folders)}{_hint(error)}") from error
        if made is None:
            raise click.UsageError(f"{self.spec} {_NOTHING}")
        if inspect.iscoroutine(made):
            made.close()
            raise click.UsageError(f"{self.spec} is async: name an ordinary function that returns the objects")
        return made

    def named(self) -> dict[str, Any]:
        """The objects under names: a dict's own, else one by the kind of each."""
        from torchmove.surveying.names import check, names_of

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
            raise click.UsageError(f"{self.where} has no {self.factory}: it has {_callables(module)}") from None
        if not callable(function) or _is_model(function):
            raise click.UsageError(
                f"{self.spec} is a {type(function).__name__}: name a function that returns the objects"
            )
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise click.UsageError(
                f"{self.spec} is called without arguments: {error}; name one that takes none"
            ) from None
        except ValueError:  # not every callable tells
            pass
        return function  # type: ignore[no-any-return]


def target(text: str) -> Target:
    where, colon, factory = text.rpartition(":")
    if not (colon and where and factory) or (where.startswith(".") and not where.endswith(".py")):
        raise click.BadParameter(f"{text!r} names no function: write file.py:function or package.module:function")
    return Target(text, where, factory, Path.cwd())


def several(made: Any) -> tuple[Any, ...]:
    # A named tuple is one object, and so is a dict of tensors; a bare tuple or list is several.
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


def _place_of(error: BaseException, folders: set[Path]) -> str:
    """The innermost line on the way to an error that is in one of these folders."""
    lines = [
        f"{os.path.relpath(frame.filename)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith("<")  # Python's own machinery
        and folders & {*Path(frame.filename).resolve().parents}
    ]
    return f" (at {lines[-1]})" if lines else ""


def _hint(error: BaseException) -> str:
    """What to do about an error that a program raises when it is imported rather than run."""
    if isinstance(error, SystemExit):
        return '. Fix: put what starts the program under `if __name__ == "__main__":`'
    if _NO_DEVICE.search(str(error)):
        return ". Fix: name the device inside the step; the function is called on this machine, which does not have it"
    return ""


def _is_model(each: Any) -> bool:
    """A module can be called, and is not a function that returns the objects."""
    nn: Any = sys.modules.get("torch.nn")  # not imported yet: then it is none
    return nn is not None and isinstance(each, nn.Module)


def _as_module(target: Target) -> str:
    """How to name a file that imports from its own package."""
    path = Path(target.where).resolve()
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    return f"in {folder} name it as {'.'.join(names)}:{target.factory}"


def _module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and something that it needs is not
        raise click.UsageError(f"there is no module {name}; for a file write {name}.py:function") from None


def _callables(module: ModuleType) -> str:
    from torchmove.formatting import listed

    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return listed(own) or "no functions"
