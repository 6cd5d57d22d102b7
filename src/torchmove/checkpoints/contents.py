"""The Contents: what is in a checkpoint?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from torchmove.checkpoints.source import in_a_line
from torchmove.formatting import counted, readable_bytes
from torchmove.results import Result
from torchmove.surveying.paths import Path

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
class Contents(Result):
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
        others = self.by_storage[entry.storage] if entry.storage is not None else []
        return (self.entries[index].path for index in others if self.entries[index] is not entry)

    @cached_property
    def by_storage(self) -> Mapping[int, list[int]]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for index, entry in enumerate(self.entries):
            if entry.storage is not None:
                found[entry.storage].append(index)
        return found


def shown(path: Path) -> str:
    """A path as it prints; what is not in anything is the whole of the checkpoint."""
    return str(path) or "the checkpoint itself"
