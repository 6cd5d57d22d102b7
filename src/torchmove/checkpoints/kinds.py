"""What kind of file is it? A checkpoint of one of two kinds; or something else, which is called by its name.

The first bytes tell, not the file's name: people get a page that says "log in", a pointer, an archive of another kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from torchmove.checkpoints.archive import LOCAL_MARK
from torchmove.checkpoints.source import Source, Unfit, in_a_line

TORCH, SAFETENSORS = "torch", "safetensors"
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
_BEGIN_BYTES = 512
_OLD = b"l\xfc\x9cF\xf9 j\xa8P\x19"  # the number that files of torch.save began with before they were zips
_PRINTABLE = frozenset((*range(32, 127), *b"\t\n\r\f"))


class Other(NamedTuple):
    """What it is instead, and what to do with it."""

    code: str
    what: str
    remedy: str

    def refused(self) -> Unfit:
        return Unfit(self.code, self.what, self.remedy)


_AGAIN = "download it again, perhaps logged in, and from the address of the file itself"
_UNPACK = "unpack it first"
_PAGE = Other("R062", "a web page, as a download leaves it that went wrong", _AGAIN)
_ANSWER = Other("R062", "a text, as a server answers when a download went wrong", _AGAIN)
_PICKLE = Other("R062", "a plain pickle, which can run anything when it is loaded", "torch.save what is in it")

# In small letters, and without the blanks before them.
_BEGINNINGS = {
    b"version https://git-lfs.github.com/spec/": Other(
        "R062", "a Git LFS pointer, which stands for the file in a clone without it", "run `git lfs pull` in the clone"
    ),
    b"<!doctype html": _PAGE,
    b"<html": _PAGE,
    b"<?xml": _ANSWER,
    b"{": Other("R062", "a JSON text", "if it is the index of a checkpoint, give it a name that ends with .index.json"),
    b"gguf": Other("R062", "a GGUF file, which names no device", "use it as it is, with what reads GGUF"),
    b"\x89hdf\r\n\x1a\n": Other("R062", "an HDF5 file, as Keras writes them", "read it with h5py or Keras"),
    b"\x93numpy": Other("R062", "a NumPy array", "read it with numpy.load: it names no device"),
    b"\x1f\x8b\x08": Other("R062", "compressed with gzip", _UNPACK),
    b"bzh": Other("R062", "compressed with bzip2", _UNPACK),
    b"\xfd7zxz\0": Other("R062", "compressed with xz", _UNPACK),
    b"\x28\xb5\x2f\xfd": Other("R062", "compressed with Zstandard", _UNPACK),
    b"pk\5\6": Other("R062", "a zip with nothing in it", "save or get it again"),
    **dict.fromkeys((b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"), _PICKLE),
}
_EMPTY = Other("R062", "an empty file", "save or get it again: nothing of it has arrived")
_TEXT = Other("R062", "a text, and no checkpoint is one", "look into it: a download that went wrong leaves such texts")
_TAR = Other("R062", "a tar archive", _UNPACK)
_BEFORE_ZIP = Other(
    "R063",
    "a file as torch.save wrote it before 1.6, or with _use_new_zipfile_serialization=False",
    "load it where torch.load(..., weights_only=True) does, and torch.save what it gives",
)

_PROGRAM = Other(
    "R063",
    "a TorchScript program, not a checkpoint",
    'load it as it is, torch.jit.load(..., map_location="cpu"); and for a checkpoint, torch.save its state_dict',
)
_EXPORTED = Other(
    "R063", "an exported program (.pt2), not a checkpoint", "torch.export.load it, and torch.save its state_dict"
)
_PACKAGE = Other("R063", "a package of torch.package, not a checkpoint", "torch.save the state_dict of what is in it")
_ARRAYS = Other("R062", "NumPy arrays in a zip (.npz)", "read it with numpy.load: it names no device")
_ZIP = Other("R062", "a zip without a data.pkl, so not one of torch.save", "")
DISTRIBUTED = Other(
    "R063",
    "a folder of torch.distributed.checkpoint",
    "make a file of it: torch.distributed.checkpoint.format_utils.dcp_to_torch_save(folder, file)",
)


def kind_of(source: Source) -> str:
    """TORCH or SAFETENSORS, by how the file begins; refused if it is anything else."""
    begin = source.read(0, min(source.nbytes, _BEGIN_BYTES))
    if begin.startswith(LOCAL_MARK):
        return TORCH
    # Before all others: the length that a safetensors file begins with, in eight bytes, may look like anything.
    if begin[5:9] == b"\0\0\0{":
        return SAFETENSORS
    refuse_other(begin)
    if source.path.endswith(".safetensors") or begin[8:9] == b"{":
        return SAFETENSORS  # not a sound one, and its reader says why
    raise Unfit("R062", f"begins with {begin[:8]!r}, as no checkpoint does")


def refuse_other(begin: bytes) -> None:
    """Refuses what begins as something that is known, and is no checkpoint."""
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
    """Refuses a zip that is not one of torch.save, by the names of its records."""
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
        raise Unfit("R062", f"a zip with {in_a_line(packed, 100)} in it", _UNPACK)
    raise _ZIP.refused()
