"""Sharded checkpoints: a folder with an index that maps each tensor to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from torchmove.checkpoints.jsontext import JsonText
from torchmove.checkpoints.kinds import DISTRIBUTED, SUFFIXES, refuse_other
from torchmove.checkpoints.source import Budget, Source, Unfit, in_a_line

_INDEX = ".index.json"
_MOST_INDEX_BYTES = 32 << 20
_MOST_FILES = 10_000


class Shards(NamedTuple):
    """The index as it was read, and the names of the tensors in each of its files."""

    listing: Path
    raw: bytes
    mode: int
    files: dict[str, list[str]]

    def path(self, file: str) -> Path:
        # The index may name only files of its own folder. Links in that folder are followed, since the Hugging Face
        # cache consists of them.
        path = self.listing.parent / file
        if not path.exists():
            what = "is a broken link" if path.is_symlink() else "does not exist"
            raise Unfit("R068", f"its file {in_a_line(file, 100)!r} {what}")
        return path


def chosen(path: Path) -> Path:
    """The checkpoint at a path: the file; or for a folder its index, or the only checkpoint in it."""
    if not path.is_dir():
        return path
    names = sorted(os.listdir(path))
    indices = [name for name in names if name.endswith(_INDEX)]
    files = indices or [name for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    if len(files) != 1:
        raise _unclear(names, files)
    return path / files[0]


def _unclear(names: list[str], files: list[str]) -> Unfit:
    if any(name.endswith(".distcp") for name in names):
        return DISTRIBUTED.refused()
    if {"blobs", "snapshots"} <= set(names):
        return Unfit("R062", "a model's folder in the Hugging Face cache", "give one of the folders in its snapshots/")
    if not files:
        return Unfit("R062", "a folder without a checkpoint")
    there = ", ".join(in_a_line(name, 60) for name in files[:4]) + (", ..." if files[4:] else "")
    return Unfit("R062", f"a folder with {len(files)} checkpoints: {there}", "give the path of one of them")


def files_of(path: Path) -> list[Path]:
    """The files of a checkpoint: the file; or the index and the files it names."""
    file = chosen(path)
    if not is_index(file):
        return [file]
    return [file, *(file.parent / name for name in read(file).files)]


def is_index(path: Path) -> bool:
    return path.name.endswith(".json")


def read(index: Path) -> Shards:
    with Source(index) as source:
        if source.nbytes > _MOST_INDEX_BYTES:
            raise Unfit("R067", f"an index of {source.nbytes} bytes; the limit is {_MOST_INDEX_BYTES}")
        raw, mode = source.read(0, source.nbytes), source.mode
        budget = Budget(source.nbytes)
    if not raw.lstrip().startswith(b"{"):
        refuse_other(raw[:500])
    files = _weight_map(JsonText(raw, "the index", budget))
    if not files:
        raise Unfit("R062", "JSON without a weight_map, so not the index of a checkpoint")
    return Shards(index, raw, mode, dict(sorted(files.items())))


def _weight_map(index: JsonText) -> dict[str, list[str]]:
    """The names of the tensors in each file."""
    files: dict[str, list[str]] = {}
    for key in index.members():
        if key != "weight_map" or index.next() != "{":
            index.skip()
            continue
        for name in index.members():
            file = index.string() if index.next() == '"' else None
            if file not in files:
                files[_inside(index.skip() if file is None else file)] = []
            if len(files) > _MOST_FILES:
                raise Unfit("R067", f"an index of more than {_MOST_FILES} files")
            files[file or ""].append(name)
    index.end()
    return files


def _inside(file: str) -> str:
    """The name, if it is that of a checkpoint file in the same folder; else raises Unfit."""
    if not file.endswith(SUFFIXES) or set(file) & {"/", "\\", "\0"} or file.startswith("."):
        raise Unfit("R068", f"it names {in_a_line(repr(file), 100)}, which is not a checkpoint file in its folder")
    return file
