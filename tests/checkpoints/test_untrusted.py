"""Checkpoint files that are broken or made to do harm: each is refused in a line, and nothing happens."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import forged
import pytest
import torch
from forged import (
    archive,
    call,
    entry,
    index,
    pickled,
    refused,
    safetensors,
    save,
    storage,
    tensor,
    text,
    torch_file,
    training,
    whole,
)

import torchmove as tm
from torchmove.checkpoints.inspecting import inspect
from torchmove.checkpoints.relocating import relocate
from torchmove.checkpoints.unpickling import Reading
from torchmove.errors import CheckpointRefused

CODE = {
    "system": call("os.system", text("touch ran")),
    "posix": call("posix.system", text("touch ran")),
    "eval": call("builtins.eval", text("open('ran', 'w')")),
    "python 2": call("__builtin__.eval", text("open('ran', 'w')")),
    "nested": call(
        "torch._tensor._rebuild_from_type_v2", forged.name("builtins.exec"), text("x"), text("y"), text("z")
    ),
    "getattr": call("builtins.getattr", forged.name("torch.Tensor"), text("__class__")),
    "load": call("torch.load", text("other.pt")),
    "newobj": forged.name("subprocess.Popen") + forged.tuple_of(text("touch ran")) + pickle.NEWOBJ,
    "old class": forged.name("torch.FloatTensor") + forged.tuple_of(whole(1 << 40)) + pickle.REDUCE,
}


@pytest.mark.parametrize("steps", CODE.values(), ids=CODE)
def test_a_pickle_that_would_run_code_is_refused_by_name_and_runs_nothing(tmp_path, monkeypatch, steps):
    monkeypatch.chdir(tmp_path)
    file = torch_file(tmp_path / "a.pt", pickle.EMPTY_DICT, text("deep"), steps, pickle.SETITEM)
    assert refused(lambda: inspect(file)) == "R064"
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == "R064"
    assert os.listdir(tmp_path) == ["a.pt"]


def nested_keys(depth: int) -> bytes:
    """A tuple of twice the tuple before, and so on: quick to make, and for ever to hash."""
    twice = pickle.BINPUT + b"\0" + pickle.BINGET + b"\0" + pickle.TUPLE2
    return pickle.EMPTY_DICT + pickle.EMPTY_TUPLE + twice * depth + pickle.NONE + pickle.SETITEM


HUGE = 1 << 60
PICKLES = {
    "a tensor of 2**60 elements": ("R066", tensor(size=(HUGE,))),
    "one whose bytes cannot be counted": ("R066", tensor(size=(1 << 40, 1 << 40), stride=(0, 0))),
    "a stride past the end": ("R066", tensor(size=(2,), stride=(4,))),
    "an offset past the end": ("R066", tensor(offset=1)),
    "a negative size": ("R066", tensor(size=(-1,))),
    "a negative stride": ("R066", tensor(stride=(-1,))),
    "a negative offset": ("R066", tensor(offset=-1)),
    "too few strides": ("R066", tensor(size=(2, 2))),
    "a storage larger than its record": ("R066", tensor(of=storage(numel=5))),
    "a storage smaller than its record": ("R066", tensor(of=storage(numel=3), size=(3,))),
    "a storage that is not there": ("R066", tensor(of=storage(key="7"))),
    "a storage elsewhere": ("R066", tensor(of=storage(key="../version", numel=0), size=(0,))),
    "a storage of 2**60 elements": ("R066", tensor(of=storage(numel=HUGE))),
    "a storage described twice": ("R066", forged.tuple_of(tensor(), tensor(of=storage(location="cuda:1")))),
    "a meta tensor beyond all memory": (
        "R066",
        call(
            "torch._utils._rebuild_meta_tensor_no_storage",
            *(forged.name("torch.float32"), forged.tuple_of(whole(1 << 62)), forged.tuple_of(whole(1))),
            pickle.NEWFALSE,
        ),
    ),
    "bytes out of nothing": ("R065", call("builtins.bytearray", whole(1 << 40))),
    "a storage out of nothing": ("R067", call("torch.storage.UntypedStorage", whole(1 << 40))),
    "a tensor out of nothing": ("R067", call("torch.Tensor", whole(1 << 40))),
    "bytes by another codec": ("R065", call("_codecs.encode", text("a"), text("hex"))),
    "a key that is for ever to hash": ("R067", nested_keys(60)),
    "a set that is for ever to hash": (
        "R067",
        call("builtins.set", pickle.EMPTY_LIST + nested_keys(60)[1:-2] + pickle.APPEND),
    ),
    "a list for a key": ("R065", pickle.EMPTY_DICT + pickle.EMPTY_LIST + pickle.NONE + pickle.SETITEM),
    "a very deep list": ("R067", pickle.EMPTY_LIST * 5000 + pickle.APPEND * 4999),
    "a very long path": (
        "R067",
        pickle.EMPTY_DICT + text("a" * 10_000) + pickle.EMPTY_LIST + pickle.SETITEM,
    ),
    "nothing on the stack": ("R065", b""),
    "a mark too many": ("R065", pickle.TUPLE),
    "a memory of nothing": ("R065", pickle.BINGET + b"\7"),
    "half a pair": ("R065", pickle.EMPTY_DICT + pickle.MARK + text("a") + pickle.SETITEMS),
    "a tensor of no storage": ("R065", tensor(of=text("a"))),
    "a persistent id of another kind": ("R065", text("a") + pickle.BINPERSID),
    "a device with colours": ("R065", tensor(of=storage(location="cuda:0\x1b[31m"))),
    "a call of a tuple": ("R065", pickle.EMPTY_TUPLE + pickle.EMPTY_TUPLE + pickle.REDUCE),
    "a text that is not": ("R065", pickle.BINUNICODE + struct.pack("<I", 1) + b"\xff"),
    "a text longer than all": ("R065", pickle.BINUNICODE + struct.pack("<I", 0xFFFFFFFF)),
}


@pytest.mark.parametrize(("code", "steps"), PICKLES.values(), ids=PICKLES)
def test_a_pickle_that_is_not_sound_is_refused(tmp_path, code, steps):
    file = torch_file(tmp_path / "a.pt", steps)
    assert refused(lambda: inspect(file)) == code
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == code
    assert os.listdir(tmp_path) == ["a.pt"]


def test_things_within_things_are_entered_once(tmp_path):
    twice = pickle.BINPUT + b"\0" + pickle.MARK + pickle.BINGET + b"\0" + pickle.BINGET + b"\0" + pickle.TUPLE
    lists = pickle.EMPTY_LIST + tensor() + pickle.APPEND + twice * 200
    contents = inspect(torch_file(tmp_path / "a.pt", lists))
    assert len(contents.entries) == 1


def test_a_location_that_is_also_data_by_hand_is_refused_not_changed(tmp_path):
    identity = forged.tuple_of(text("storage"), forged.name("torch.FloatStorage"), text("0"), text("cuda:0"), whole(4))
    remembered = identity + pickle.BINPUT + b"\0" + pickle.BINPERSID
    file = torch_file(tmp_path / "a.pt", forged.tuple_of(tensor(of=remembered), pickle.BINGET + b"\0"))
    assert inspect(file).devices() == {"cuda:0": 16}
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == "R071"
    assert os.listdir(tmp_path) == ["a.pt"]


def test_what_torch_itself_does_not_load_is_refused_with_its_words(tmp_path):
    numbers = storage(numel=2, kind="torch.LongStorage")
    sizes = (forged.tuple_of(whole(2)), forged.tuple_of(whole(1)))
    hooks = call("collections.OrderedDict")
    odd = call("torch._utils._rebuild_tensor_v2", numbers, whole(0), *sizes, pickle.NEWTRUE, hooks)
    file = torch_file(tmp_path / "a.pt", odd)
    with pytest.raises(CheckpointRefused, match=r"R071 .*torch does not load it weights-only: only Tensors"):
        relocate(file, out=tmp_path / "b.pt")


def test_a_file_that_ends_early_is_refused_at_every_length(tmp_path):
    whole_file = save(tmp_path / "a.pt", training()).read_bytes()
    header = {"a": entry()}
    for content, name in (
        (whole_file, "cut.pt"),
        (safetensors(tmp_path / "s", header, bytes(8)).read_bytes(), "cut.safetensors"),
    ):
        lengths = range(len(content)) if len(content) < 300 else range(0, len(content), 37)
        for length in lengths:
            (tmp_path / name).write_bytes(content[:length])
            assert refused(lambda name=name: inspect(tmp_path / name)) in ("R062", "R065")


def test_a_byte_that_is_wrong_anywhere_does_no_harm(tmp_path):
    content = save(tmp_path / "a.pt", {"a": torch.ones(2), "b": "cuda:0"}).read_bytes()
    for at in range(len(content)):
        spoilt = bytearray(content)
        spoilt[at] ^= 0x55
        (tmp_path / "b.pt").write_bytes(spoilt)
        with suppress(CheckpointRefused):
            assert len(inspect(tmp_path / "b.pt").entries) == 1


def test_what_is_not_an_ordinary_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "pipe.pt", Path("/dev/zero"), tmp_path / "missing.pt"):
        assert refused(lambda path=path: inspect(path)) == "R061"
    assert refused(lambda: inspect(tmp_path)) == "R061"  # its only checkpoint is the pipe
    (tmp_path / "empty").mkdir()
    assert refused(lambda: inspect(tmp_path / "empty")) == "R062"


def spoil(path: Path, kind: str) -> Path:
    save(path, {"a": torch.ones(4)})
    parts = forged.records(path)
    if kind == "checksum":
        raw = path.read_bytes()
        path.write_bytes(raw.replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v1"))
    elif kind == "compressed":
        archive(path, parts, method=zipfile.ZIP_DEFLATED)
    elif kind == "encrypted":
        archive(path, parts)
        raw = bytearray(path.read_bytes())
        raw[6] |= 1
        raw[raw.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(raw)
    elif kind == "dots":
        archive(path, {**parts, "../../x": b"x"})
    elif kind == "absolute":
        archive(path, parts, folder="/")
    elif kind == "two folders":
        with zipfile.ZipFile(archive(path, parts), "a") as file:
            file.writestr("other/data.pkl", b"x")
    elif kind == "another case":
        archive(path, {**parts, "DATA.PKL": parts["data.pkl"]})
    elif kind == "overlapping":
        raw = bytearray(path.read_bytes())
        for at in [found.start() for found in re.finditer(b"PK\x01\x02", raw)][-2:]:
            struct.pack_into("<I", raw, at + 42, 0)
        path.write_bytes(raw)
    elif kind == "something behind":
        path.write_bytes(path.read_bytes() + b"more")
    elif kind == "something before":
        path.write_bytes(b"PK\x03\x04more" + path.read_bytes())
    elif kind == "byte order":
        archive(path, {**parts, "byteorder": b"middle"})
    elif kind == "alignment":
        archive(path, {**parts, ".storage_alignment": b"0"})
    return path


SPOILT = [
    *("checksum", "compressed", "encrypted", "dots", "absolute", "two folders", "another case"),
    *("overlapping", "something behind", "something before", "byte order", "alignment"),
]


@pytest.mark.parametrize("kind", SPOILT)
def test_a_zip_that_torch_did_not_write_so_is_refused(tmp_path, kind):
    file = spoil(tmp_path / "a.pt", kind)
    assert refused(lambda: inspect(file)) == "R065"
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == "R065"
    assert os.listdir(tmp_path) == ["a.pt"]


def test_a_pickle_or_directory_of_absurd_size_is_not_read(tmp_path):
    def sparse(path: Path, name: bytes, nbytes: int, directory: int) -> Path:
        """A zip with one record, and holes for what it holds."""
        with path.open("wb") as file:
            file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 0, 0, 0, 0, 0, 0, nbytes, nbytes, len(name), 0) + name)
            file.seek(nbytes, 1)
            at = file.tell()
            fields = (0, 0, 0, 0, 0, 0, 0, nbytes, nbytes, len(name), 0, 0, 0, 0, 0, 0)
            file.write(struct.pack("<4s6H3I5H2I", b"PK\1\2", *fields) + name)
            file.seek(directory, 1)
            size = file.tell() - at
            file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, size, at, 0))
        return path

    assert refused(lambda: inspect(sparse(tmp_path / "a.pt", b"a/data.pkl", 3 << 30, 0))) == "R067"
    assert refused(lambda: inspect(sparse(tmp_path / "b.pt", b"a/data.pkl", 10, 3 << 30))) == "R067"


SAFETENSORS: dict[str, tuple[str, Any]] = {
    "a header of 2**63 bytes": ("R065", {"header": {"a": entry()}, "length": 1 << 63}),
    "a header longer than the file": ("R065", {"header": {"a": entry()}, "length": 1000}),
    "no JSON": ("R065", {"header": b'{"a": '}),
    "no object": ("R062", {"header": b"[1, 2]"}),
    "very deep": ("R065", {"header": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"}),
    "not UTF-8": ("R065", {"header": b'{"\xff": 1}'}),
    "a number without end": ("R065", {"header": b'{"a": ' + b"9" * 10_000 + b"}"}),
    "a key twice": ("R065", {"header": b'{"a": {"dtype": "F32", "dtype": "F32"}}'}),
    "a tensor twice": ("R065", {"header": f'{{"a": {json.dumps(entry())}, "a": {json.dumps(entry())}}}'.encode()}),
    "no description": ("R065", {"header": {"a": 1}}),
    "too much description": ("R065", {"header": {"a": {**entry(), "device": "cuda"}}}),
    "a dtype that is none": ("R065", {"header": {"a": entry("F33")}}),
    "a dtype that is a list": ("R065", {"header": {"a": {**entry(), "dtype": []}}}),
    "a size that is true": ("R066", {"header": {"a": {**entry(), "shape": [True]}}}),
    "a negative size": ("R066", {"header": {"a": entry(shape=(-2,))}}),
    "a size beyond all": ("R066", {"header": {"a": entry(shape=(1 << 62, 1 << 62))}}),
    "offsets that do not fit": ("R066", {"header": {"a": entry(offsets=(0, 4))}, "data": bytes(4)}),
    "offsets the wrong way": ("R066", {"header": {"a": entry(offsets=(8, 0))}}),
    "offsets beyond the data": ("R065", {"header": {"a": entry()}, "data": bytes(4)}),
    "an overlap": ("R066", {"header": {"a": entry(), "b": entry(offsets=(4, 12))}, "data": bytes(12)}),
    "a hole": ("R066", {"header": {"a": entry(), "b": entry(offsets=(12, 20))}, "data": bytes(20)}),
    "something behind": ("R065", {"header": {"a": entry()}, "data": bytes(9)}),
    "half a byte": ("R066", {"header": {"a": entry("F4", (1,), (0, 0))}}),
    "a name without end": ("R067", {"header": {"a" * 10_000: entry()}}),
}


@pytest.mark.parametrize(("code", "made"), SAFETENSORS.values(), ids=SAFETENSORS)
def test_a_safetensors_file_that_is_not_sound_is_refused(tmp_path, code, made):
    file = safetensors(tmp_path / "a.safetensors", made["header"], made.get("data", bytes(8)), made.get("length"))
    assert refused(lambda: inspect(file)) == code


def tricked(folder: Path, kind: str) -> Path:
    save(folder.parent / "outside.bin", {"a": torch.ones(2)})
    file: Any = {
        "absolute": str(folder.parent / "outside.bin"),
        "parent": "../outside.bin",
        "backslash": "..\\outside.bin",
        "hidden": ".bin",
        "no text": 3,
        "no checkpoint": "config.json",
        "nul": "a\0.bin",
    }.get(kind, "a.bin")
    index(folder, {"a": file})
    if kind == "a link to nothing":
        (folder / "a.bin").symlink_to("../elsewhere.bin")
    elif kind == "a link in a circle":
        (folder / "a.bin").symlink_to("a.bin")
    elif kind == "a link to a pipe":
        os.mkfifo(folder / "pipe")
        (folder / "a.bin").symlink_to("pipe")
    elif kind == "a link to a device":
        (folder / "a.bin").symlink_to("/dev/zero")
    elif kind == "a link to a folder":
        (folder / "a.bin").symlink_to("..")
    elif kind == "a link to a text":
        (folder / "a.bin").symlink_to(__file__)
    elif kind == "pipe":
        os.mkfifo(folder / "a.bin")
    elif kind == "another tensor":
        save(folder / "a.bin", {"b": torch.ones(2)})
    elif kind == "no tensor":
        save(folder / "a.bin", {"a": 1})
    elif kind == "not a dict":
        save(folder / "a.bin", [torch.ones(2)])
    elif kind == "no map":
        (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": []}')
    elif kind == "two indices":
        index(folder, {"a": "a.bin"}, "model.safetensors.index.json")
    return folder


TRICKS = {
    **dict.fromkeys(("absolute", "parent", "backslash", "hidden", "no text", "no checkpoint", "nul"), "R068"),
    **dict.fromkeys(("a link to nothing", "a link in a circle", "missing"), "R068"),
    **dict.fromkeys(("another tensor", "no tensor", "not a dict"), "R068"),
    **dict.fromkeys(("pipe", "a link to a pipe", "a link to a device", "a link to a folder"), "R061"),
    "a link to a text": "R062",
    "no map": "R062",
    "two indices": "R062",
}


@pytest.mark.parametrize(("kind", "code"), TRICKS.items(), ids=TRICKS)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path, kind, code):
    folder = tricked(tmp_path / "model", kind)
    assert refused(lambda: inspect(folder)) == code
    assert refused(lambda: relocate(folder, out=tmp_path / "moved")) == code
    assert sorted(os.listdir(tmp_path)) == ["model", "outside.bin"]


def test_names_from_outside_stay_in_one_line(tmp_path):
    odd = tmp_path / "a\nb\x1b[31m.pt"
    odd.write_bytes(b"no checkpoint")
    assert refused(lambda: inspect(odd)) == "R062"
    save(odd, {"x\ny": torch.ones(1)})
    assert "\x1b" not in str(inspect(odd))


def test_a_refusal_is_an_error_of_the_library():
    assert issubclass(CheckpointRefused, tm.TorchmoveError)


def test_a_reading_ends_where_the_pickle_does():
    assert Reading(pickled(pickle.NONE) + b"behind", {}).value is None
