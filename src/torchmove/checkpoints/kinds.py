"""The kind of a file: a checkpoint of torch.save, a safetensors file, or something else, which is refused by name.

The first bytes decide, not the file's name: a download may have left a login page, an LFS pointer or another archive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from torchmove.checkpoints.archive import LOCAL_MARK
from torchmove.checkpoints.source import Source, Unfit, in_a_line

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


def kind_of(source: Source) -> str:
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
