"""The Relocated: what was written, and what of it changed?"""

from __future__ import annotations

from dataclasses import dataclass

from torchmove.checkpoints.contents import Contents
from torchmove.results import Result


@dataclass(frozen=True, eq=False, repr=False)
class Relocated(Result):
    """A checkpoint that was written anew, with its storages on another device; and how that was proved."""

    before: Contents
    after: Contents
    target: str
    storages: int  # that changed their device
    loaded: bool  # by torch, weights-only, before it got its name
    seconds: float

    @property
    def checked(self) -> tuple[str, ...]:
        by_torch = ("loaded weights-only by torch",) if self.loaded else ()
        return ("paths", "dtypes", "shapes", "strides", "sharing", "every byte by its checksum", "devices", *by_torch)
