"""The Relocated: what was written, and what of it changed?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchmove.checkpoints.contents import Contents, shown
from torchmove.report import Reported, Sheet, counted, readable_bytes


@dataclass(frozen=True, eq=False, repr=False)
class Relocated(Reported):
    """A checkpoint that was written anew, with its storages on another device; and how that was proved."""

    before: Contents
    after: Contents
    target: str
    storages: int  # that changed their device
    loaded: bool  # by torch, weights-only, before it got its name
    seconds: float

    def sheet(self) -> Sheet:
        came = ", ".join(device for device in self.before.devices() if device != self.target)
        title = (
            f"{self.after.name}: {counted(self.storages, 'storage')} of {len(self.after.storages)} from {came} to "
            f"{self.target}; {readable_bytes(self.after.nbytes)} in {self.seconds:.3g} s"
        )
        lines = [f"verified: {', '.join(self.checked)}"]
        if not self.loaded:
            lines.append("not loaded by torch: its bytes are in the order of another kind of machine")
        lines += [f"{shown(path)}: names the device {device}, left alone" for path, device in self.after.mentions[:10]]
        if self.after.mentions[10:]:
            lines.append(f"... and {len(self.after.mentions) - 10} more such names: .after.mentions has all of them")
        return Sheet(title, tuple(lines))

    @property
    def checked(self) -> tuple[str, ...]:
        by_torch = ("loaded weights-only by torch",) if self.loaded else ()
        return ("paths", "dtypes", "shapes", "strides", "sharing", "every byte by its checksum", "devices", *by_torch)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.before.name,
            "out": self.after.name,
            "to": self.target,
            "storages": self.storages,
            "bytes": self.after.nbytes,
            "seconds": self.seconds,
            "loaded": self.loaded,
            "checked": list(self.checked),
            "before": self.before.devices(),
            "after": self.after.devices(),
            "left_alone": [{"path": str(path), "device": device} for path, device in self.after.mentions],
        }
