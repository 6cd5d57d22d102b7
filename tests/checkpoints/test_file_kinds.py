"""Files that people take for checkpoints: each is called by its name, with what to do."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from forged import entry, index, refused, safetensors, save, training
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchmove.checkpoints.inspecting import inspect
from torchmove.checkpoints.relocating import relocate
from torchmove.errors import CheckpointRefused

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 1234\n" % (b"0" * 64)
PAGE = b"\n<!DOCTYPE HTML>\n<html><head><title>Log in</title></head></html>\n"


def zipped(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, "content")


def packaged(path: Path) -> None:
    with torch.package.PackageExporter(str(path)) as exporter:
        exporter.extern("torch.**")
        exporter.save_pickle("model", "weights.pkl", torch.ones(2))


def numpy_saved(path: Path, save_arrays: Callable[..., object], **arrays: np.ndarray) -> None:
    with path.open("wb") as file:
        save_arrays(file, **arrays)


def tarred(path: Path) -> None:
    with tarfile.open(path, "w") as file:
        file.add(__file__, "model.pt")


def exported(path: Path) -> None:
    file = path.with_suffix(".pt2")
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), file)
    file.rename(path)


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a script": (
        lambda path: torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path),
        r"R063 .*: a TorchScript program.*torch\.jit\.load\(\.\.\., map_location=",
    ),
    "a trace": (
        lambda path: torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), path),
        r"R063 .*: a TorchScript program",
    ),
    "exported": (exported, r"R063 .*: an exported program.*torch\.export\.load"),
    "exported before 2.8": (
        lambda path: zipped(path, "serialized_exported_program.json", "serialized_state_dict.pt", "version"),
        r"R063 .*: an exported program",
    ),
    "a package": (packaged, r"R063 .*: a torch\.package archive"),
    "before zips": (
        lambda path: torch.save(training(), path, _use_new_zipfile_serialization=False),
        r"R063 .*before 1\.6.*torch\.load",
    ),
    "before zips, protocol 4": (
        lambda path: torch.save(training(), path, _use_new_zipfile_serialization=False, pickle_protocol=4),
        r"R063 .*before 1\.6",
    ),
    "npz": (lambda path: numpy_saved(path, np.savez, a=np.ones(2)), r"R062 .*\.npz.*numpy\.load"),
    "compressed npz": (lambda path: numpy_saved(path, np.savez_compressed, a=np.ones(2)), r"R062 .*\.npz"),
    "npy": (lambda path: numpy_saved(path, np.save, arr=np.ones(2)), r"R062 .*NumPy array.*numpy\.load"),
    "a zip": (lambda path: zipped(path, "readme", "docs/page"), r"R062 .*a zip without data\.pkl"),
    "an empty zip": (zipped, r"R062 .*an empty zip"),
    "a zipped checkpoint": (lambda path: zipped(path, "in/model.pt"), r"R062 .*contains in/model\.pt.*unpack"),
    "gguf": (lambda path: path.write_bytes(b"GGUF\3\0\0\0" + bytes(99)), r"R062 .*GGUF"),
    "hdf5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), r"R062 .*HDF5.*h5py"),
    "gzip": (lambda path: path.write_bytes(gzip.compress(b"a")), r"R062 .*gzip.*unpack"),
    "bzip2": (lambda path: path.write_bytes(bz2.compress(b"a")), r"R062 .*bzip2.*unpack"),
    "xz": (lambda path: path.write_bytes(lzma.compress(b"a")), r"R062 .*xz.*unpack"),
    "zstandard": (lambda path: path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(9)), r"R062 .*Zstandard.*unpack"),
    "tar": (tarred, r"R062 .*tar.*unpack"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), r"R062 .*plain pickle"),
    "empty": (lambda path: path.write_bytes(b""), r"R062 .*an empty file.*again"),
    "a pointer": (lambda path: path.write_bytes(POINTER), r"R062 .*Git LFS pointer.*git lfs pull"),
    "a page": (lambda path: path.write_bytes(PAGE), r"R062 .*web page.*download it again"),
    "a short page": (lambda path: path.write_bytes(b"\xef\xbb\xbf<html></html>"), r"R062 .*web page"),
    "an answer": (lambda path: path.write_bytes(b"<?xml version='1.0'?><Error/>"), r"R062 .*XML.*download it again"),
    "json": (lambda path: path.write_bytes(b'{"error": "no"}'), r"R062 .*JSON.*\.index\.json"),
    "a text": (lambda path: path.write_bytes(b"Entry not found"), r"R062 .*: a text.*download"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize(("make", "said"), OTHERS.values(), ids=OTHERS)
def test_what_is_no_checkpoint_is_called_by_its_name(tmp_path, make, said, suffix):
    file = tmp_path / f"a.{suffix}"
    make(file)
    with pytest.raises(CheckpointRefused, match=rf"^{said}"):
        inspect(file)
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == said[:4]
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_a_file_of_torch_save_is_one_whatever_its_name(tmp_path):
    assert inspect(save(tmp_path / "a.safetensors", training())).kind == "torch"
    assert inspect(safetensors(tmp_path / "a.pt", {"a": entry()}, bytes(8))).kind == "safetensors"


@pytest.mark.parametrize("begin", [b"\x1f\x8b\x08", b"\x80\x02", b"BZh"], ids=["gzip", "a pickle", "bzip2"])
def test_a_safetensors_header_of_any_length_is_no_other_kind(tmp_path, begin):
    header = json.dumps({"a": entry()}).encode().ljust(int.from_bytes(begin, "little"))
    file = safetensors(tmp_path / "a", header, bytes(8))
    assert file.read_bytes().startswith(begin)
    assert inspect(file).kind == "safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointRefused, match=r"R065 .*the file is truncated"):
        inspect(file)


def test_pointers_in_a_folder_are_called_by_their_name_too(tmp_path):
    folder = index(tmp_path / "model", {"a": "1.safetensors"}, "model.safetensors.index.json")
    (folder / "1.safetensors").write_bytes(POINTER)
    with pytest.raises(CheckpointRefused, match=r"R062 .*1\.safetensors: a Git LFS pointer"):
        inspect(folder)
    (folder / "model.safetensors.index.json").write_bytes(POINTER)
    with pytest.raises(CheckpointRefused, match=r"R062 .*model: a Git LFS pointer"):
        inspect(folder)


def test_a_distributed_checkpoint_is_refused_with_the_way_out(tmp_path):
    (tmp_path / ".metadata").write_bytes(b"")
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(CheckpointRefused, match=r"R063 .*dcp_to_torch_save"):
        inspect(tmp_path)


@given(
    begin=st.sampled_from([b"", b"PK\3\4", b"\x80\2", b"version ", b"<html", b"{", b"\x10" + bytes(7) + b"{"]),
    rest=st.binary(max_size=600),
    name=st.sampled_from(["a.pt", "a.safetensors", "a", "a.index.json"]),
)
@settings(max_examples=300, deadline=None)
def test_whatever_a_file_holds_it_is_refused_in_a_line(tmp_path_factory, begin, rest, name):
    file = tmp_path_factory.mktemp("any") / name
    file.write_bytes(begin + rest)
    assert refused(lambda: inspect(file)) in {"R062", "R063", "R065", "R066", "R067"}
