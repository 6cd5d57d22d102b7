"""The Contents of a checkpoint: its tensors, storages, optimizer states and device names."""

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

_SHOWN = 10  # kinds of optimizer state
NO_DEVICE = "any device"  # a safetensors file does not record devices


class SavedTensor(NamedTuple):
    """A tensor of a checkpoint. `storage` is the index of its storage; None for a meta tensor."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int
    storage: int | None


class SavedStorage(NamedTuple):
    """A storage in a checkpoint: the device it was saved from, its bytes, and how many of them its tensors use."""

    file: str
    key: str
    device: str
    nbytes: int
    used_bytes: int


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


class DeviceMention(NamedTuple):
    """A device that a checkpoint names outside of its storages."""

    path: Path
    device: str


@dataclass(frozen=True, eq=False, repr=False)
class Contents(Result):
    """Every tensor of a checkpoint: path, dtype, shape, bytes, the device it was saved from, and shared storages."""

    name: str
    kind: str
    files: tuple[str, ...]
    entries: tuple[SavedTensor, ...]
    storages: tuple[SavedStorage, ...]
    optimizers: tuple[OptimizerState, ...]
    mentions: tuple[DeviceMention, ...]
    unused_bytes: int = 0  # of storages without a tensor
    unlisted: int = 0  # further paths of tensors; `entries` has the first thousand of each

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in self.storages)

    @property
    def beyond_bytes(self) -> int:
        """Bytes of the storages that no tensor uses."""
        return self.unused_bytes + sum(kept.nbytes - kept.used_bytes for kept in self.storages)

    def devices(self) -> dict[str, int]:
        """Bytes by the device they were saved from."""
        totals: Counter[str] = Counter()
        for kept in self.storages:
            totals[kept.device] += kept.nbytes
        return dict(totals)

    def device_of(self, entry: SavedTensor) -> str:
        return "meta" if entry.storage is None else self.storages[entry.storage].device

    def sharing(self, entry: SavedTensor) -> Iterator[Path]:
        """The paths of the other tensors on the same storage."""
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
    """A path as text; the empty path is the checkpoint itself."""
    return str(path) or "the checkpoint itself"
