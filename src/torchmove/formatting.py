"""Numbers, sizes and lists as readable text."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SHOWN_NAMES, _SHOWN_LETTERS = 6, 100


def listed(names: Sequence[object], between: str = ", ") -> str:
    """All names if they are few, else the first few and `and N more`."""
    shown = [_cut(str(name)) for name in names[:_SHOWN_NAMES]]
    left_out = len(names) - len(shown)
    return between.join(shown) + (f" and {left_out} more" if left_out else "")


def _cut(name: str) -> str:
    return name if len(name) <= _SHOWN_LETTERS else f"{name[: _SHOWN_LETTERS - 3]}..."


def counted(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def readable_bytes(count: int) -> str:
    """`1.5 GiB`: three significant digits."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{count} B"
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"  # 1010 KiB, not 1.01e+03


def bytes_of(size: str | int, argument: str) -> int:
    """The number of bytes of a size such as `80GB` or `80GiB`. Raises ValueError, which names the argument."""
    if isinstance(size, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", size.strip().lower())
        nbytes = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    else:
        nbytes = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if nbytes <= 0:
        raise ValueError(f"{argument}{size!r} is not a size. Fix: {argument}'80GB', '80GiB' or a number of bytes")
    return nbytes


def readable_seconds(seconds: float) -> str:
    """`1.5 ms`: three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
