"""Write a checkpoint again, so that it loads without the device that it was saved from.

A tensor's data is the same on every device; only the pickle names the device. So the pickle is not loaded and pickled
again: the texts in it that name a storage's device are replaced, and every other record is copied as it is, a few MiB
at a time. The result is read back, compared, and loaded by torch before it gets its name.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchmove.checkpoints.archive import Archive, Packer, Record, check
from torchmove.checkpoints.atomic_writes import check_output, close_file, make_file, new_file, new_folder
from torchmove.checkpoints.file_kinds import Shards, chosen_file, is_index, read_index
from torchmove.checkpoints.inspecting import Contents, FileContents, SavedTensor, inspect, read_checkpoint, shown
from torchmove.checkpoints.pickled_objects import dtype_name, meaning
from torchmove.checkpoints.unpickling import PICKLE, Reading, rewritten
from torchmove.checkpoints.untrusted import InputFile, Stamp, Unfit, in_a_line, naming, refused
from torchmove.devices import resolve_device
from torchmove.moving.movers.copies import Advance
from torchmove.progress import ProgressBar
from torchmove.results import Result
from torchmove.surveying import paths
from torchmove.surveying.paths import ATTRIBUTE, CALL, MEMBER


@dataclass(frozen=True, eq=False, repr=False)
class Relocated(Result):
    """A checkpoint that was rewritten with its storages on another device, and what was verified."""

    before: Contents
    after: Contents
    target: str
    storages: int  # whose device changed
    loaded: bool  # torch loaded it weights-only before it was renamed to its final name
    seconds: float

    @property
    def checked(self) -> tuple[str, ...]:
        by_torch = ("loaded weights-only by torch",) if self.loaded else ()
        return ("paths", "dtypes", "shapes", "strides", "sharing", "every byte by its checksum", "devices", *by_torch)


def check_with_torch(
    file: str | os.PathLike[str], byteorder: str, entries: Iterable[SavedTensor], *, anywhere: bool
) -> bool:
    """Load the file with torch and raise Unfit unless it has these tensors. `anywhere`: without map_location.

    Returns False, without loading, for the other byte order: torch would swap all bytes of the file in memory.
    """
    if byteorder != sys.byteorder:
        return False
    loaded = _loaded(file, None if anywhere else "cpu")
    storages: dict[int, int] = {}
    for entry in entries:
        tensor = _tensor_at(entry.path, loaded)
        if tensor is None:
            continue
        if _layout_of(tensor) != (entry.dtype, entry.shape, entry.stride, entry.offset):
            raise Unfit("R071", "torch loads a different tensor than the file describes", inside=shown(entry.path))
        address = 0 if entry.storage is None else tensor.untyped_storage().data_ptr()
        if address and storages.setdefault(entry.storage or 0, address) != address:
            raise Unfit("R071", "torch does not load it into its shared storage", inside=shown(entry.path))
    if len(set(storages.values())) != len(storages):
        raise Unfit("R071", "torch loads two storages into one")
    return True


def _loaded(file: str | os.PathLike[str], location: str | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an unusual pickle protocol
        try:
            return torch.load(file, map_location=location, weights_only=True, mmap=True)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise Unfit("R071", f"torch does not load it weights-only: {in_a_line(lines[0])}") from None


def _tensor_at(path: paths.Path, loaded: Any) -> Any:
    """The tensor at a path; None if the path leads through an object or a set, where it cannot be followed."""
    foreign = (MEMBER, CALL, ATTRIBUTE)
    if any(step.how in foreign for step in path.steps()):
        return None
    try:
        value = path.fetch({"": loaded})
    except (LookupError, TypeError):  # also for a key that is not equal to itself (NaN)
        raise Unfit("R071", "torch does not load a tensor at this path", inside=shown(path)) from None
    return value if isinstance(value, torch.Tensor) else None


def _layout_of(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
    return dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


# Device types that torch knows, but cannot load a storage to.
_WITHOUT_STORAGES = {
    *("meta", "xla", "lazy", "vulkan", "maia", "ipu", "fpga", "ve", "hip"),
    *("mkldnn", "opengl", "opencl", "ideep"),
}


class _Rewrite(NamedTuple):
    """A file to rewrite: its path, its state when it was read, and its new pickle."""

    path: Path
    stamp: Stamp
    mode: int
    pickled: bytes
    byteorder: str
    alignment: int
    entries: list[SavedTensor]
    storages: int  # whose device changes


def relocate(
    path: str | os.PathLike[str],
    to: str | torch.device = "cpu",
    *,
    out: str | os.PathLike[str],
    overwrite: bool = False,
    progress: bool = True,
) -> Relocated:
    """Rewrite a checkpoint of torch.save to `out`, with all of its storages on the device `to`.

    The result of a file is a file; of a folder or its index, a new folder with the index and the files it names. The
    original is unchanged; `out` appears complete and verified, or not at all. An existing `out` is replaced only with
    `overwrite=True`, and only a regular file by a file. The result has the permissions of the original. Memory use is
    that of the pickle and a few MiB, for tensors of any size.

    A checkpoint that is on the device already is copied unchanged: `out` is there in any case.

    Raises CheckpointRefused for whatever `inspect` refuses or torch does not load weights-only, and for a .safetensors
    file, which names no device and loads on any.
    """
    began = time.monotonic()
    target, place = _location(to), Path(out)
    work: list[_Rewrite] = []
    before = read_checkpoint(path, lambda contents: work.append(_prepared(contents, target)))
    with naming(path):
        file = chosen_file(Path(path))
        index = read_index(file) if is_index(file) else None
        folder = index is not None or Path(path).is_dir()
    with naming(place):
        check_output(os.fspath(out), [rewrite.path for rewrite in work], folder=folder, overwrite=overwrite)
        total = sum(rewrite.stamp.nbytes for rewrite in work)
        with ProgressBar(2 * total, f"{place.name} to {target}", wanted=progress) as bar:
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
            device = resolve_device(to) if to == "auto" else torch.device(to)
        except (RuntimeError, TypeError):
            raise Unfit("R060", "not a device that this version of torch knows") from None
        if device.type in _WITHOUT_STORAGES:
            raise Unfit("R060", f"torch cannot load storages to {device.type}")
    return str(device)


def _prepared(contents: FileContents, target: str) -> _Rewrite:
    path, file, entries = contents.path, contents.opened, contents.found.entries
    with naming(path):
        if file is None:
            raise Unfit("R070", "a safetensors file names no device and loads on any")
        check_with_torch(path, file.byteorder, entries, anywhere=False)
        reading, source = file.reading, file.source
        pickled = rewritten(file.pickled, {text.start for text in reading.places if text != target}, target)
        after = Reading(pickled, file.archive.records)
        if meaning(reading.value) != meaning(after.value) or any(text != target for text in after.places):
            raise Unfit("R071", "its pickle uses a device name for something else too")
        storages = sum(stored.device != target for stored in reading.storages.values())
        return _Rewrite(path, source.stamp, source.mode, pickled, file.byteorder, file.alignment, entries, storages)


def _write_folder(
    place: Path, work: list[_Rewrite], index: Shards | None, write: Callable[[_Rewrite, Path], bool]
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
    """Write the file and verify it."""
    with InputFile(rewrite.path) as source:
        _unchanged(rewrite, source)
        try:
            checksums = _copy(Archive(source), rewrite, hidden, advance)
        except Unfit as unfit:
            _unchanged(rewrite, source)
            raise refused(rewrite.path, unfit) from None  # the original is invalid, not the result
        _unchanged(rewrite, source)
    with InputFile(hidden) as result:
        _compare(result, checksums, rewrite, advance)
    close_file(hidden, rewrite.mode)
    return check_with_torch(hidden, rewrite.byteorder, rewrite.entries, anywhere=target == "cpu")


def _unchanged(rewrite: _Rewrite, source: InputFile) -> None:
    if source.stamp_now() != rewrite.stamp:
        raise Unfit("R072", f"the original {rewrite.path.name} was modified during the copy")


def _copy(archive: Archive, rewrite: _Rewrite, hidden: Path, advance: Advance) -> dict[str, int]:
    source, checksums = archive.source, {}
    with hidden.open("wb") as file:
        packer = Packer(file, archive.folder, rewrite.alignment)
        for record in archive.records.values():
            if record.name == PICKLE:
                checksums[PICKLE] = packer.write(PICKLE, len(rewrite.pickled), [rewrite.pickled])
                continue
            checksums[record.name] = packer.write(
                record.name, record.nbytes, _with_progress(source.pieces(record.offset, record.nbytes), advance)
            )
            check(record, checksums[record.name])
        packer.finish()
    return checksums


def _with_progress(pieces: Iterable[bytes], advance: Advance) -> Iterable[bytes]:
    for piece in pieces:
        yield piece
        advance(len(piece))


def _compare(result: InputFile, checksums: dict[str, int], rewrite: _Rewrite, advance: Advance) -> None:
    archive = Archive(result)
    if archive.records.keys() != checksums.keys():
        raise Unfit("R072", "the result has different records than were written")
    for record in archive.records.values():
        if not _is(record, checksums[record.name], result):
            raise Unfit("R072", f"record {record.name!r} of the result differs from what was written")
        advance(record.nbytes)
    if archive.read(PICKLE, len(rewrite.pickled)) != rewrite.pickled:  # which was interpreted before it was written
        raise Unfit("R072", "the pickle of the result differs from what was written")


def _is(record: Record, checksum: int, result: InputFile) -> bool:
    return record.checksum == checksum == result.checksum(record.offset, record.nbytes)
