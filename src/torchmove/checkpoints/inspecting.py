"""What is in a checkpoint? Read from headers and pickles alone: no tensor's data is touched, nothing is run."""

from __future__ import annotations

import os
from pathlib import Path

from torchmove.checkpoints import safetensors, shards
from torchmove.checkpoints.budget import Budget
from torchmove.checkpoints.contents import Contents
from torchmove.checkpoints.files import Source
from torchmove.checkpoints.kinds import SAFETENSORS, TORCH, kind_of
from torchmove.checkpoints.refusing import Unfit, in_a_line, naming
from torchmove.checkpoints.torchfiles import TorchFile
from torchmove.checkpoints.values import Tensor
from torchmove.checkpoints.walking import Found, walk
from torchmove.internals.collector import without_collector


@without_collector
def inspect(path: str | os.PathLike[str]) -> Contents:
    """What is in a checkpoint: a file of torch.save, a .safetensors file, or a sharded folder or its index.

    Reads what describes the tensors, never the tensors, and runs nothing that is in the file. Raises CheckpointRefused
    for whatever is not a sound checkpoint of torch's weights-only kind.
    """
    with naming(path):
        file = shards.chosen(Path(path))
        if shards.is_index(file):
            return _sharded(Path(path), shards.read(file))
        with Source(file) as source:
            if kind_of(source) == SAFETENSORS:
                found = Found(*safetensors.read(source, Budget(), file.name))
                return _contents(file, SAFETENSORS, (file.name,), found, 0)
            opened = TorchFile(source)
            return _contents(file, TORCH, (file.name,), walk(opened.reading, file.name), opened.unused_bytes)


def _contents(path: Path, kind: str, files: tuple[str, ...], found: Found, unused_bytes: int) -> Contents:
    parts = (tuple(found.entries), tuple(found.storages), tuple(found.optimizers), tuple(found.mentions))
    return Contents(in_a_line(str(path)), kind, files, *parts, unused_bytes, found.unlisted)


def _sharded(folder: Path, index: shards.Shards) -> Contents:
    whole, budget = Found(), Budget()  # one for all of them: many names may lead to one file
    kinds, unused_bytes = set(), 0
    for file, names in index.files.items():
        path = index.path(file)
        with naming(path), Source(path) as source:
            if kind_of(source) == SAFETENSORS:
                found = Found(*safetensors.read(source, budget, file, len(whole.storages)))
                there = {entry.path.what for entry in found.entries}
                kinds.add(SAFETENSORS)
            else:
                opened = TorchFile(source, budget)
                found, there = walk(opened.reading, file, len(whole.storages)), tensors_in(opened)
                unused_bytes += opened.unused_bytes
                kinds.add(TORCH)
        expect(names, there, file)
        whole.extend(found)
    kind = f"sharded {' and '.join(sorted(kinds))}"
    return _contents(folder, kind, tuple(index.files), whole, unused_bytes)


def tensors_in(opened: TorchFile) -> set[str]:
    """The names under which a shard has its tensors."""
    value = opened.reading.value
    return {name for name, each in value.items() if isinstance(each, Tensor)} if isinstance(value, dict) else set()


def expect(names: list[str], there: set[str], file: str) -> None:
    missing = [name for name in names if name not in there]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise Unfit("R068", f"{in_a_line(file, 100)} has no tensor {in_a_line(missing[0], 100)!r}{more}")
