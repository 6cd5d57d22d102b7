"""The page of `--html`: never written over what the command reads, nor over a file that nobody said may go.

It takes its place as a relocated checkpoint does: whole or not at all, and in the place of an ordinary file alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class Page(NamedTuple):
    """Where it goes: as it was written, and from the root, since the user's code may go to another folder."""

    given: str
    path: str
    overwrite: bool

    def check(self, inputs: Collection[Path]) -> bool:
        """Refuses what cannot be its place. Returns whether a file is replaced there."""
        from torchmove.checkpoints import output as placing
        from torchmove.checkpoints.source import naming

        with naming(self.given):
            return placing.check_page(self.path, inputs, overwrite=self.overwrite)

    def write(self, words: str, inputs: Collection[Path]) -> None:
        from torchmove.checkpoints.output import new_file
        from torchmove.checkpoints.source import naming

        replaces, place = self.check(inputs), Path(self.path)
        with naming(self.given):
            # Nobody may do more with the new page than with the one before.
            mode = stat.S_IMODE(os.lstat(place).st_mode) & 0o777 if os.path.lexists(place) else 0o666
            with new_file(place, mode, overwrite=replaces) as hidden:
                hidden.write_text(words, encoding="utf-8")
