"""Writing a checkpoint anew, so that it loads where the device that it was saved from is not.

A tensor's data is the same on every device; only the pickle says where it goes. So the pickle is not unpickled and
pickled again: the texts in it that name a storage's device are replaced, and every other record is copied as it is, a
few MiB at a time. What was written is read back, compared, and loaded by torch before it gets its name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from torchmove.checkpoints import placing, shards
from torchmove.checkpoints.archive import Archive, Record, check
from torchmove.checkpoints.contents import Entry
from torchmove.checkpoints.files import Source, Stamp
from torchmove.checkpoints.inspecting import inspect
from torchmove.checkpoints.judging import judge
from torchmove.checkpoints.kinds import SAFETENSORS, kind_of
from torchmove.checkpoints.landing import close_file, make_file, new_file, new_folder
from torchmove.checkpoints.packing import Packer
from torchmove.checkpoints.reading import Reading
from torchmove.checkpoints.refusing import Unfit, naming, refused
from torchmove.checkpoints.relocated import Relocated
from torchmove.checkpoints.rewriting import rewritten
from torchmove.checkpoints.torchfiles import PICKLE, TorchFile
from torchmove.checkpoints.values import meaning
from torchmove.checkpoints.walking import walk
from torchmove.internals.collector import without_collector
from torchmove.moving.batches import Advance
from torchmove.progress import Bar

# torch can name these, and has no storages there that a file could be loaded into.
_WITHOUT_STORAGES = {
    *("meta", "xla", "lazy", "vulkan", "maia", "ipu", "fpga", "ve", "hip"),
    *("mkldnn", "opengl", "opencl", "ideep"),
}


class _Rewrite(NamedTuple):
    """A file to be written anew: where it is, how it was when it was read, and its new pickle."""

    path: Path
    stamp: Stamp
    mode: int
    pickled: bytes
    meaning: str
    byteorder: str
    alignment: int
    entries: list[Entry]
    storages: int  # that change their device


def relocate(
    path: str | os.PathLike[str],
    to: str | torch.device = "cpu",
    *,
    out: str | os.PathLike[str],
    overwrite: bool = False,
    progress: bool = True,
) -> Relocated:
    """Write a checkpoint of torch.save to `out`, with all its storages on the device `to`.

    A file becomes a file; a folder, or its index, a new folder, with the files that the index names and the index. The
    original is not touched; `out` appears when it is whole and proved, or not at all. What is there already is kept,
    unless it is an ordinary file, the result is one too, and `overwrite=True`. Nobody may do more with the result than
    with the original. Needs the memory of the pickle and a few MiB, whatever the size of the tensors.

    Raises CheckpointRefused for what `inspect` refuses too; for what torch does not load weights-only; and where there
    is nothing to do: a .safetensors file names no device, and loads on any as it is.
    """
    began = time.monotonic()
    target, place = _location(to), Path(out)
    before = inspect(path)
    with naming(path):
        file = shards.chosen(Path(path))
        index = shards.read(file) if shards.is_index(file) else None
        files = [file] if index is None else [index.path(name) for name in index.files]
        folder = index is not None or Path(path).is_dir()
    work = [_prepared(each, target) for each in files]
    with naming(path):
        if not any(rewrite.storages for rewrite in work):
            raise Unfit("R070", f"all of it is on {target} already")
    with naming(place):
        placing.check(os.fspath(out), files, folder=folder, overwrite=overwrite)
        total = sum(rewrite.stamp.nbytes for rewrite in work)
        with Bar(2 * total, f"{place.name} to {target}", wanted=progress) as bar:
            write = partial(_written, target=target, advance=bar.advance)
            if folder:
                loaded = _write_folder(place, work, index, write)
            else:
                with new_file(place, work[0].mode, overwrite=overwrite) as hidden:
                    loaded = write(work[0], hidden)
    moved = sum(rewrite.storages for rewrite in work)
    return Relocated(before, inspect(place), target, moved, loaded, time.monotonic() - began)


def _location(to: str | torch.device) -> str:
    with naming(f"to={to!s}"):
        try:
            device = torch.device(to)
        except (RuntimeError, TypeError):
            raise Unfit("R060", "not a device that this torch knows") from None
        if device.type in _WITHOUT_STORAGES:
            raise Unfit("R060", f"no storage can be loaded to {device.type}")
    return str(device)


@without_collector
def _prepared(path: Path, target: str) -> _Rewrite:
    with naming(path), Source(path) as source:
        if kind_of(source) == SAFETENSORS:
            raise Unfit("R070", "a safetensors file names no device: it loads on any, as it is")
        file = TorchFile(source)
        reading = file.reading
        entries = walk(reading, path.name).entries
        judge(path, file.byteorder, entries, anywhere=False)
        pickled = rewritten(file.pickled, {word.at for word in reading.places if word != target}, target)
        after = Reading(pickled, file.archive.records)
        said = meaning(reading.value)
        if said != meaning(after.value) or any(word != target for word in after.places):
            raise Unfit("R071", "its pickle uses the name of a device for something else too, in a way of its own")
        storages = sum(stored.device != target for stored in reading.storages.values())
        return _Rewrite(
            path, source.stamp, source.mode, pickled, said, file.byteorder, file.alignment, entries, storages
        )


def _write_folder(
    place: Path, work: list[_Rewrite], index: shards.Shards | None, write: Callable[[_Rewrite, Path], bool]
) -> bool:
    loaded = True
    with new_folder(place, work[0].path.parent.stat().st_mode & 0o777) as hidden:
        if index is not None:
            listing = hidden / index.listing.name
            make_file(listing, index.mode)
            listing.write_bytes(index.raw)
            close_file(listing, index.mode)
        for rewrite in work:
            file = hidden / rewrite.path.name
            make_file(file, rewrite.mode)
            loaded &= write(rewrite, file)
    return loaded


def _written(rewrite: _Rewrite, hidden: Path, *, target: str, advance: Advance) -> bool:
    """Write the file, and prove it."""
    with Source(rewrite.path) as source:
        _unchanged(rewrite, source)
        try:
            checksums = _copy(Archive(source), rewrite, hidden, advance)
        except Unfit as unfit:
            _unchanged(rewrite, source)
            raise refused(rewrite.path, unfit) from None  # it is the original that is at fault
        _unchanged(rewrite, source)
    with Source(hidden) as result:
        _compare(result, checksums, rewrite, target, advance)
    close_file(hidden, rewrite.mode)
    return judge(hidden, rewrite.byteorder, rewrite.entries, anywhere=target == "cpu")


def _unchanged(rewrite: _Rewrite, source: Source) -> None:
    if source.stamp_now() != rewrite.stamp:
        raise Unfit("R072", f"{rewrite.path.name}, from which it is made, has been written to meanwhile")


def _copy(archive: Archive, rewrite: _Rewrite, hidden: Path, advance: Advance) -> dict[str, int]:
    source, checksums = archive.source, {}
    with hidden.open("wb") as file:
        packer = Packer(file, archive.folder, rewrite.alignment)
        for record in archive.records.values():
            if record.name == PICKLE:
                checksums[PICKLE] = packer.write(PICKLE, len(rewrite.pickled), [rewrite.pickled])
                continue
            checksums[record.name] = packer.write(
                record.name, record.nbytes, _told(source.pieces(record.offset, record.nbytes), advance)
            )
            check(record, checksums[record.name])
        packer.finish()
    return checksums


def _told(pieces: Iterable[bytes], advance: Advance) -> Iterable[bytes]:
    for piece in pieces:
        yield piece
        advance(len(piece))


@without_collector
def _compare(result: Source, checksums: dict[str, int], rewrite: _Rewrite, target: str, advance: Advance) -> None:
    file = TorchFile(result)
    records = file.archive.records
    if records.keys() != checksums.keys():
        raise Unfit("R072", "other records are in the result than were written")
    for record in records.values():
        if not _is(record, checksums[record.name], result):
            raise Unfit("R072", f"its record {record.name!r} is not what was written")
        advance(record.nbytes)
    where = {stored.device for stored in file.reading.storages.values()}
    if file.pickled != rewrite.pickled or meaning(file.reading.value) != rewrite.meaning or where - {target}:
        raise Unfit("R072", "its pickle is not what was written")


def _is(record: Record, checksum: int, result: Source) -> bool:
    return record.checksum == checksum == result.checksum(record.offset, record.nbytes)
