"""The files that may be edited, and writing all of them or none."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from torchmove.checkpoints.atomic_writes import new_file
from torchmove.errors import TorchmoveError
from torchmove.internals.guards import HeldInterrupts
from torchmove.rehearsing.fixing.edits import NotEdited
from torchmove.rehearsing.provenance import is_installed


class SourceChanged(TorchmoveError):
    """A file is not what was rehearsed any more."""


class SourceFiles:
    """The files of a program that may be edited: those in one folder. `within`: the folder."""

    def __init__(self, within: Path) -> None:
        self.within = within.resolve()

    def read(self, file: str) -> bytes:
        """The source of a file; raises NotEdited if it is not to be edited."""
        path = Path(file).resolve()
        if is_installed(file) or is_installed(str(path)):
            raise NotEdited("in an installed library")
        if not path.is_file():
            raise NotEdited("not in a file")
        if not path.is_relative_to(self.within):
            raise NotEdited(f"not in {self.within}; --within DIR names another folder")
        if path.stat().st_nlink > 1:
            raise NotEdited("the file has a second name (a hard link), which would keep the old source")
        if not _is_writable(path) or not os.access(path.parent, os.W_OK):
            raise NotEdited("the file is not writable")
        return path.read_bytes()


def _is_writable(path: Path) -> bool:
    """Whether its permissions let any user write it; to root every file is writable."""
    return os.access(path, os.W_OK) and bool(path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))


def write_all(sources: Mapping[str, bytes], originals: Mapping[str, bytes]) -> None:
    """Write the edited files: all, or none if one cannot be written. Ctrl-C waits."""
    places = {Path(file).resolve(): (originals[file], source) for file, source in sources.items()}
    for path, (original, _) in places.items():
        if path.read_bytes() != original:
            raise SourceChanged(f"{path} was changed while its program was rehearsed. Nothing is edited. Fix: again")
    with HeldInterrupts() as interrupts, interrupts:
        try:
            with ExitStack() as stack:
                for path, (_, source) in places.items():
                    _write(path, source, stack)
        except BaseException:
            for path, (original, source) in places.items():
                if path.read_bytes() == source:
                    with ExitStack() as stack:
                        _write(path, original, stack)
            raise


def _write(path: Path, source: bytes, stack: ExitStack) -> None:
    """Write a hidden file beside it; it gets the name when the stack ends."""
    mode = stat.S_IMODE(path.stat().st_mode)
    hidden = stack.enter_context(new_file(path, mode, overwrite=True))
    hidden.write_bytes(source)
    hidden.chmod(mode)
