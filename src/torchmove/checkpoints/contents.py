"""The Contents: what is in a checkpoint?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from torchmove._paths import Path
from torchmove.checkpoints.refusing import in_a_line
from torchmove.report import Reported, Sheet, counted, readable_bytes, table

_SHOWN = 10  # of what there is mostly one
NO_DEVICE = "any device"  # a safetensors file does not say where its tensors were


class Entry(NamedTuple):
    """A tensor of a checkpoint. `storage` is the index of the storage that it looks at; a meta tensor has none."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int
    storage: int | None


class Kept(NamedTuple):
    """A storage in a checkpoint: where it was saved from, how many bytes it has, and how many its tensors show."""

    file: str
    key: str
    device: str
    nbytes: int
    shown_bytes: int


class OptimizerState(NamedTuple):
    """The state_dict of an optimizer: its parameters, and the bytes of each kind of state."""

    path: Path
    parameters: int
    kinds: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        return sum(self.kinds.values())

    def __str__(self) -> str:
        first = islice(self.kinds.items(), _SHOWN)
        kinds = ", ".join(f"{in_a_line(kind, 60)} {readable_bytes(size)}" for kind, size in first)
        kinds += f" and {len(self.kinds) - _SHOWN} more kinds" if len(self.kinds) > _SHOWN else ""
        return f"optimizer {shown(self.path)}: {counted(self.parameters, 'parameter')}; state: {kinds or 'none yet'}"


class Mention(NamedTuple):
    """A device that is named in a checkpoint without holding anything there."""

    path: Path
    device: str


@dataclass(frozen=True, eq=False, repr=False)
class Contents(Reported):
    """Every tensor of a checkpoint: its path, dtype, shape, bytes, the device it was saved from, and who shares."""

    name: str
    kind: str
    files: tuple[str, ...]
    entries: tuple[Entry, ...]
    storages: tuple[Kept, ...]
    optimizers: tuple[OptimizerState, ...]
    mentions: tuple[Mention, ...]
    unused_bytes: int = 0  # of storages that belong to no tensor
    unlisted: int = 0  # names of tensors beyond the first thousand of each, which `entries` has

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in self.storages)

    @property
    def beyond_bytes(self) -> int:
        """What the storages hold beyond what the tensors show."""
        return self.unused_bytes + sum(kept.nbytes - kept.shown_bytes for kept in self.storages)

    def devices(self) -> dict[str, int]:
        """Bytes by the device they were saved from."""
        totals: Counter[str] = Counter()
        for kept in self.storages:
            totals[kept.device] += kept.nbytes
        return dict(totals)

    def device_of(self, entry: Entry) -> str:
        return "meta" if entry.storage is None else self.storages[entry.storage].device

    def sharing(self, entry: Entry) -> Iterator[Path]:
        """The paths of the other tensors that look at the same storage."""
        others = self._by_storage[entry.storage] if entry.storage is not None else []
        return (self.entries[index].path for index in others if self.entries[index] is not entry)

    @cached_property
    def _by_storage(self) -> Mapping[int, list[int]]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for index, entry in enumerate(self.entries):
            if entry.storage is not None:
                found[entry.storage].append(index)
        return found

    def sheet(self) -> Sheet:
        places = ", ".join(f"{readable_bytes(size)} on {device}" for device, size in self.devices().items())
        count = f"{counted(len(self.entries), 'tensor')} in {counted(len(self.storages), 'storage')}"
        columns = ("path", "device", "dtype", "shape", "bytes", "shares with")
        return Sheet(
            f"{self.name} ({self.kind}): {count}" + (f", {places}" if places else ""),
            (*self._lines(),),
            (table("tensors", columns, map(self._row, self.entries), total=len(self.entries)),),
        )

    def _lines(self) -> Iterator[str]:
        if len(self.files) > 1:
            first = ", ".join(map(in_a_line, self.files[:3]))
            yield f"in {counted(len(self.files), 'file')}: {first}{', ...' if self.files[3:] else ''}"
        if self.beyond_bytes:
            yield f"the storages hold {readable_bytes(self.beyond_bytes)} beyond what the tensors show"
        if self.unlisted:
            yield f"{self.unlisted} more names of the tensors are counted and not listed: 1000 are, of each tensor"
        yield from map(str, self.optimizers[:_SHOWN])
        if self.optimizers[_SHOWN:]:
            yield f"... and {len(self.optimizers) - _SHOWN} more optimizers: .optimizers has all of them"
        yield from (f"{shown(path)}: names the device {device}" for path, device in self.mentions[:_SHOWN])
        if self.mentions[_SHOWN:]:
            yield f"... and {len(self.mentions) - _SHOWN} more such names: .mentions has all of them"

    def _row(self, entry: Entry) -> tuple[object, ...]:
        others = 0 if entry.storage is None else len(self._by_storage[entry.storage]) - 1
        more = f" (+{others - 2})" if others > 2 else ""
        shares = ", ".join(map(shown, islice(self.sharing(entry), 2))) + more
        return shown(entry.path), self.device_of(entry), entry.dtype, entry.shape, entry.nbytes, shares

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "files": list(self.files),
            "devices": self.devices(),
            "bytes": self.nbytes,
            "beyond_bytes": self.beyond_bytes,
            "unlisted": self.unlisted,
            "tensors": [self._entry_facts(entry) for entry in self.entries],
            "storages": [
                {**kept._asdict(), "tensors": self._by_storage.get(index, [])}
                for index, kept in enumerate(self.storages)
            ],
            "optimizers": [
                {"path": str(each.path), "parameters": each.parameters, "kinds": dict(each.kinds), "bytes": each.nbytes}
                for each in self.optimizers
            ],
            "mentions": [{"path": str(path), "device": device} for path, device in self.mentions],
        }

    def _entry_facts(self, entry: Entry) -> dict[str, Any]:
        facts = {**entry._asdict(), "path": str(entry.path), "device": self.device_of(entry)}
        facts["file"] = None if entry.storage is None else self.storages[entry.storage].file
        return facts


def shown(path: Path) -> str:
    """A path as it prints; what is not in anything is the whole of the checkpoint."""
    return str(path) or "the checkpoint itself"
