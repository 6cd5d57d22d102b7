"""The page of `--html`. It never replaces a file that the command reads, nor another file without --overwrite.

It is written like a relocated checkpoint: complete or not at all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class Page(NamedTuple):
    """The path of the page: as given, and absolute, since the user's code may change the working directory."""

    given: str
    path: str
    overwrite: bool

    def check(self, inputs: Collection[Path]) -> bool:
        """Refuse a path that cannot be written. Returns whether a file is replaced."""
        from torchmove.checkpoints import output as placing
        from torchmove.checkpoints.source import naming

        with naming(self.given):
            return placing.check_page(self.path, inputs, overwrite=self.overwrite)

    def write(self, words: str, inputs: Collection[Path]) -> None:
        from torchmove.checkpoints.output import new_file
        from torchmove.checkpoints.source import naming

        replaces, place = self.check(inputs), Path(self.path)
        with naming(self.given):
            # The new page gets the permissions of the one it replaces.
            mode = stat.S_IMODE(os.lstat(place).st_mode) & 0o777 if os.path.lexists(place) else 0o666
            with new_file(place, mode, overwrite=replaces) as hidden:
                hidden.write_text(words, encoding="utf-8")
