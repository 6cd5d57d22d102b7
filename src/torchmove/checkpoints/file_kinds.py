"""Which checkpoint a path names: a file of torch.save, a .safetensors file, or a sharded folder with its index.

Anything else is refused by name. The first bytes decide, not the file's name: a download may have left a login page, an
LFS pointer or another archive.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from torchmove.checkpoints.archive import LOCAL_MARK
from torchmove.checkpoints.untrusted import Budget, InputFile, JsonText, Unfit, in_a_line

TORCH, SAFETENSORS = "torch", "safetensors"
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
_BEGIN_BYTES = 512
_OLD = b"l\xfc\x9cF\xf9 j\xa8P\x19"  # the magic number of torch.save before it wrote zips
_PRINTABLE = frozenset((*range(32, 127), *b"\t\n\r\f"))


class Other(NamedTuple):
    """What a file is instead of a checkpoint, and what to do with it."""

    code: str
    what: str
    remedy: str

    def refused(self) -> Unfit:
        return Unfit(self.code, self.what, self.remedy)


_AGAIN = "download it again from the URL of the file itself, logged in if needed"
_UNPACK = "unpack it first"
_PAGE = Other("R062", "a web page, as left by a failed download", _AGAIN)
_ANSWER = Other("R062", "an XML text, as left by a failed download", _AGAIN)
_PICKLE = Other("R062", "a plain pickle, which can run any code when it is loaded", "save its contents with torch.save")

# In lower case, without leading whitespace.
_BEGINNINGS = {
    b"version https://git-lfs.github.com/spec/": Other(
        "R062", "a Git LFS pointer, not the file itself", "run `git lfs pull` in the clone"
    ),
    b"<!doctype html": _PAGE,
    b"<html": _PAGE,
    b"<?xml": _ANSWER,
    b"{": Other("R062", "a JSON file", "if it is the index of a checkpoint, rename it to end with .index.json"),
    b"gguf": Other("R062", "a GGUF file, which names no device", "use it as it is, with a GGUF reader"),
    b"\x89hdf\r\n\x1a\n": Other("R062", "an HDF5 file, such as Keras writes", "read it with h5py or Keras"),
    b"\x93numpy": Other("R062", "a NumPy array, which names no device", "read it with numpy.load"),
    b"\x1f\x8b\x08": Other("R062", "compressed with gzip", _UNPACK),
    b"bzh": Other("R062", "compressed with bzip2", _UNPACK),
    b"\xfd7zxz\0": Other("R062", "compressed with xz", _UNPACK),
    b"\x28\xb5\x2f\xfd": Other("R062", "compressed with Zstandard", _UNPACK),
    b"pk\5\6": Other("R062", "an empty zip", "save or download it again"),
    **dict.fromkeys((b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"), _PICKLE),
}
_EMPTY = Other("R062", "an empty file", "save or download it again")
_TEXT = Other(
    "R062",
    "a text file, not a checkpoint",
    "open it: it may hold the error message of a failed download; then download it again",
)
_TAR = Other("R062", "a tar archive", _UNPACK)
_BEFORE_ZIP = Other(
    "R063",
    "in the format of torch.save before 1.6, or of _use_new_zipfile_serialization=False",
    "load it with torch.load(..., weights_only=True) and torch.save the result",
)

_PROGRAM = Other(
    "R063",
    "a TorchScript program, not a checkpoint",
    'load it with torch.jit.load(..., map_location="cpu"), or torch.save its state_dict',
)
_EXPORTED = Other(
    "R063",
    "an exported program (.pt2), not a checkpoint",
    "torch.export.load it, and torch.save its state_dict",
)
_PACKAGE = Other("R063", "a torch.package archive, not a checkpoint", "torch.save the state_dict of its model")
_ARRAYS = Other("R062", "NumPy arrays in a zip (.npz), which name no device", "read it with numpy.load")
_ZIP = Other("R062", "a zip without data.pkl, so not written by torch.save", "")
DISTRIBUTED = Other(
    "R063",
    "a folder of torch.distributed.checkpoint",
    "convert it with torch.distributed.checkpoint.format_utils.dcp_to_torch_save(folder, file)",
)


def kind_of(source: InputFile) -> str:
    """TORCH or SAFETENSORS, by the first bytes of the file; raises Unfit for anything else."""
    begin = source.read(0, min(source.nbytes, _BEGIN_BYTES))
    if begin.startswith(LOCAL_MARK):
        return TORCH
    # First, since the 8 bytes of length at the start of a safetensors file can look like any other magic number.
    if begin[5:9] == b"\0\0\0{":
        return SAFETENSORS
    refuse_other(begin)
    if source.path.endswith(".safetensors") or begin[8:9] == b"{":
        return SAFETENSORS  # an invalid one; its reader says why
    raise Unfit("R062", f"not a checkpoint: it begins with {begin[:8]!r}")


def refuse_other(begin: bytes) -> None:
    """Raise Unfit if the first bytes are those of a known other kind of file."""
    other = next(_others(begin), None)
    if other is not None:
        raise other.refused()


def _others(begin: bytes) -> Iterator[Other]:
    if not begin:
        yield _EMPTY
    if _OLD in begin[:32]:
        yield _BEFORE_ZIP
    start = begin.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    yield from (other for mark, other in _BEGINNINGS.items() if start.startswith(mark))
    if begin[257:262] == b"ustar":
        yield _TAR
    if _PRINTABLE.issuperset(begin):
        yield _TEXT


def refuse_other_zip(names: Collection[str]) -> None:
    """Raise Unfit for a zip that torch.save did not write, by the names of its records."""
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner:
        raise _PROGRAM.refused()
    if "data.pkl" in inner:
        return
    if inner & {"archive_format", "models/model.json"} or "serialized_exported_program.json" in names:
        raise _EXPORTED.refused()
    if ".data/extern_modules" in inner:
        raise _PACKAGE.refused()
    if names and all(name.endswith(".npy") for name in names):
        raise _ARRAYS.refused()
    packed = next((name for name in names if name.endswith(SUFFIXES)), None)
    if packed is not None:
        raise Unfit("R062", f"a zip that contains {in_a_line(packed, 100)}", _UNPACK)
    raise _ZIP.refused()


# ---------------------------------------------------------------- folders and their index


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


def chosen_file(path: Path) -> Path:
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
    file = chosen_file(path)
    if not is_index(file):
        return [file]
    return [file, *(file.parent / name for name in read_index(file).files)]


def is_index(path: Path) -> bool:
    return path.name.endswith(".json")


def read_index(index: Path) -> Shards:
    with InputFile(index) as source:
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
