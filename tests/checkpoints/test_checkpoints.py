"""Checkpoint files: what is in them, written anew for another device, and refused where they are not sound."""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import forged
import pytest
import torch
from forged import call, entry, index, linked, refused, safetensors, save, storage, tensor, text, torch_file, training
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses import FakeTensorMode

from torchmove.checkpoints import archive as packing
from torchmove.checkpoints.archive import Archive, Packer
from torchmove.checkpoints.inspecting import inspect
from torchmove.checkpoints.pickled_objects import DTYPES, MAKERS, STORAGES, meaning
from torchmove.checkpoints.relocating import relocate
from torchmove.checkpoints.unpickling import Reading, TorchFile
from torchmove.checkpoints.untrusted import InputFile
from torchmove.errors import CheckpointRefused


def paths_of(contents: Any) -> list[str]:
    return [str(entry.path) for entry in contents.entries]


def meaning_of(path: Path) -> str:
    with InputFile(path) as source:
        return meaning(TorchFile(source).reading.value)


# ---------------------------------------------------------------- inspecting


def test_a_training_checkpoint_shows_paths_devices_ties_and_the_optimizer(tmp_path):
    contents = inspect(save(tmp_path / "a.pt", training()))
    assert paths_of(contents)[:3] == ["['model']['0.weight']", "['model']['0.bias']", "['model']['1.weight']"]
    first = contents.entries[0]
    assert (first.dtype, first.shape, first.nbytes) == ("float32", (4, 4), 64)
    assert [str(path) for path in contents.sharing(first)] == ["['model']['1.weight']"]
    assert contents.devices() == {"cuda:0": contents.nbytes}
    (optimizer,) = contents.optimizers
    assert optimizer.parameters == 2
    assert optimizer.kinds == {"step": 8, "exp_avg": 80, "exp_avg_sq": 80}
    assert contents.beyond_bytes == 0


def test_contents_print_in_a_terminal_and_a_notebook_and_turn_into_json(tmp_path):
    contents = inspect(save(tmp_path / "a.pt", training()))
    assert "9 tensors in 8 storages" in str(contents)
    assert "optimizer ['optimizer']: 2 parameters; state: step 8 B" in str(contents)
    assert contents._repr_html_().startswith("<div><strong>")
    facts = json.loads(contents.to_json())
    assert facts["devices"] == {"cuda:0": contents.nbytes}
    assert facts["tensors"][0]["path"] == "['model']['0.weight']"
    assert facts["storages"][0]["tensors"] == [0, 2]


def test_a_slice_carries_its_whole_storage(tmp_path):
    contents = inspect(save(tmp_path / "a.pt", {"slice": torch.zeros(100)[10:20], "column": torch.zeros(10, 10)[:, 3]}))
    assert [(kept.nbytes, kept.used_bytes) for kept in contents.storages] == [(400, 40), (400, 40)]
    assert contents.beyond_bytes == 720


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta", "ignore:.*prototype stage", "ignore:torch.quantize_per"
)
def test_every_kind_of_tensor_is_found(tmp_path):
    made = {
        "sparse": torch.eye(3).to_sparse(),
        "rows": torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=True),
        "buffer": nn.Buffer(torch.ones(2)),
        "parameter": nn.Parameter(torch.ones(2)),
        "conjugated": torch.ones(2, dtype=torch.cfloat).conj(),
        "meta": torch.empty(3, device="meta"),
        "small": torch.ones(3).to(torch.float8_e4m3fn),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "channels": torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "storage": torch.ones(2).untyped_storage(),
        "set": {1, "a"},
        "bytes": [b"\xff", bytearray(b"\xfe"), 1j, 2**70, torch.Size([1, 2]), torch.float16],
        "counter": Counter("abb"),
        (1, "b"): torch.ones(1),
    }
    contents = inspect(save(tmp_path / "a.pt", made))
    assert {
        "['sparse']._indices()",
        "['rows'].crow_indices()",
        "['nested'].values()",
        "['channels'].q_per_channel_scales()",
        "['storage']",
        "[(1, 'b')]",
        "['meta']",
    } < set(paths_of(contents))
    by_path = {str(each.path): each for each in contents.entries}
    assert contents.device_of(by_path["['meta']"]) == "meta"
    assert by_path["['small']"].dtype == "float8_e4m3fn"
    assert by_path["['quantized']"].dtype == "qint8"


def test_a_device_that_is_only_named_is_told(tmp_path):
    contents = inspect(save(tmp_path / "a.pt", {"here": torch.device("cuda", 1), "device": "cuda:0", "note": "cuda:0"}))
    assert [(str(path), device) for path, device in contents.mentions] == [
        ("['here']", "cuda:1"),
        ("['device']", "cuda:0"),
    ]


def test_tensors_of_a_device_without_storages_tell_it(tmp_path):
    file = torch_file(
        tmp_path / "a.pt",
        call(
            "torch._utils._rebuild_device_tensor_from_cpu_tensor",
            tensor(of=storage(location="cpu")),
            forged.name("torch.float32"),
            text("xla:1"),
            pickle.NEWFALSE,
        ),
    )
    assert inspect(file).devices() == {"xla:1": 16}
    relocate(file, out=tmp_path / "b.pt")
    assert inspect(tmp_path / "b.pt").devices() == {"cpu": 16}
    assert torch.load(tmp_path / "b.pt").equal(torch.zeros(4))


class Marked(torch.Tensor):
    pass


def test_what_the_user_allows_is_read_and_nothing_else(tmp_path):
    file = save(tmp_path / "a.pt", {"marked": torch.ones(2).as_subclass(Marked)})
    with pytest.raises(CheckpointRefused, match=r"R064 .*: it needs test_checkpoints\.Marked, .*add_safe_globals"):
        inspect(file)
    with torch.serialization.safe_globals([Marked]):
        assert paths_of(inspect(file)) == ["['marked']"]
        relocate(file, out=tmp_path / "b.pt")
        assert type(torch.load(tmp_path / "b.pt")["marked"]) is Marked


# torch 2.15 no longer allows it; torchmove still reads the nested tensors of older files.
DROPPED = {"torch._utils._rebuild_nested_tensor"}


def test_the_names_that_are_read_are_those_that_torch_allows():
    from torch._weights_only_unpickler import _get_allowed_globals

    # torch also allows the old tensor classes; no checkpoint in a zip has them, and calling one asks for memory.
    made_up = {name for name in _get_allowed_globals() if re.search(r"\w+Tensor$", name)} - set(MAKERS)
    known = {
        *MAKERS,
        *STORAGES,
        *DTYPES,
        "torch.Tensor",
        *(name for name in _get_allowed_globals() if "torch.per_" in name),
    }
    assert known | made_up | {"torch.storage.TypedStorage"} >= set(_get_allowed_globals())
    assert {*MAKERS, *STORAGES} - DROPPED <= set(_get_allowed_globals())


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "ASGD", "LBFGS", "Rprop"])
def test_real_optimizers_are_recognized_and_survive(tmp_path, kind):
    model = nn.Linear(3, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **({"momentum": 0.9} if kind == "SGD" else {}))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.ones(1, 3)).square().sum()
        value.backward()
        return value

    for _ in range(3):
        optimizer.step(loss)
    file = save(tmp_path / "a.pt", optimizer.state_dict())
    (state,) = inspect(file).optimizers
    held = sum(
        each.nbytes
        for values in optimizer.state.values()
        for value in values.values()
        for each in (value if isinstance(value, list) else [value])
        if isinstance(each, torch.Tensor)
    )
    assert (state.parameters, state.nbytes) == (2, held)
    relocate(file, out=tmp_path / "b.pt")
    alike(torch.load(tmp_path / "b.pt"), optimizer.state_dict())


def test_inspecting_reads_no_data_and_turns_no_bytes_around(tmp_path):
    def read_bytes() -> int:
        return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])

    with FakeTensorMode(), torch.serialization.skip_data(materialize_fake_tensors=True):
        value = {"a": torch.empty(1 << 30, device="cuda:1"), "b": torch.empty(3, 1 << 30, dtype=torch.int8)}
        torch.save(value, tmp_path / "large.pt")
    before = read_bytes()
    contents = inspect(tmp_path / "large.pt")
    assert contents.devices() == {"cuda:1": 4 << 30, "cpu": 3 << 30}
    assert read_bytes() - before < 1 << 20


def test_a_safetensors_file_is_read_by_its_header(tmp_path):
    header = {"__metadata__": {"format": "pt"}, "b": entry("BF16", (2, 3), (8, 20)), "a": entry()}
    contents = inspect(safetensors(tmp_path / "a.safetensors", header, bytes(20)))
    assert [(str(each.path), each.dtype, each.shape, each.nbytes) for each in contents.entries] == [
        ("['b']", "bfloat16", (2, 3), 12),
        ("['a']", "float32", (2,), 8),
    ]
    assert contents.devices() == {"any device": 20}
    assert refused(lambda: relocate(tmp_path / "a.safetensors", out=tmp_path / "b.safetensors")) == "R070"


def test_a_sharded_folder_is_one_checkpoint(tmp_path):
    folder = index(tmp_path / "model", {"a": "one.bin", "b": "two.bin", "c": "two.bin"})
    save(folder / "one.bin", {"a": torch.ones(2)})
    save(folder / "two.bin", {"b": torch.ones(3), "c": torch.ones(4)}, "cuda:1")
    for given_path in (folder, folder / "pytorch_model.bin.index.json"):
        contents = inspect(given_path)
        assert paths_of(contents) == ["['a']", "['b']", "['c']"]
        assert contents.devices() == {"cuda:0": 8, "cuda:1": 28}
        assert [kept.file for kept in contents.storages] == ["one.bin", "two.bin", "two.bin"]
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    done = relocate(folder, out=tmp_path / "moved")
    assert done.after.devices() == {"cpu": 36}
    assert {file.name for file in (tmp_path / "moved").iterdir()} == set(before)
    assert torch.load(tmp_path / "moved" / "two.bin")["c"].equal(torch.ones(4))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert sorted(os.listdir(tmp_path)) == ["model", "moved"]


def test_a_sharded_folder_of_safetensors_is_one_checkpoint_too(tmp_path):
    folder = index(tmp_path / "model", {"a": "1.safetensors", "b": "2.safetensors"}, "model.safetensors.index.json")
    safetensors(folder / "1.safetensors", {"a": entry()}, bytes(8))
    safetensors(folder / "2.safetensors", {"b": entry()}, bytes(8))
    assert paths_of(inspect(folder)) == ["['a']", "['b']"]
    assert refused(lambda: relocate(folder, out=tmp_path / "moved")) == "R070"
    assert not (tmp_path / "moved").exists()


def test_a_snapshot_of_the_hugging_face_cache_is_one_checkpoint(tmp_path):
    folder = index(tmp_path / "model", {"a": "1.safetensors", "b": "2.safetensors"}, "model.safetensors.index.json")
    safetensors(folder / "1.safetensors", {"a": entry()}, bytes(8))
    safetensors(folder / "2.safetensors", {"b": entry()}, bytes(8))
    snapshot = linked(folder)
    for path in (snapshot, snapshot / "model.safetensors.index.json"):
        assert paths_of(inspect(path)) == ["['a']", "['b']"]
        assert refused(lambda path=path: relocate(path, out=tmp_path / "moved")) == "R070"
    assert paths_of(inspect(snapshot / "2.safetensors")) == ["['b']"]
    with pytest.raises(CheckpointRefused, match=r"R062 .*Hugging Face cache.*snapshots/"):
        inspect(tmp_path / "hub")


def test_what_a_snapshot_links_to_is_written_as_files(tmp_path):
    folder = index(tmp_path / "model", {"a": "one.bin", "b": "two.bin"})
    save(folder / "one.bin", {"a": torch.ones(2)})
    save(folder / "two.bin", {"b": torch.ones(3)})
    snapshot = linked(folder)
    before = {file.name: file.read_bytes() for file in (tmp_path / "hub" / "blobs").iterdir()}
    relocate(snapshot, out=tmp_path / "moved")
    written = {file.name: file for file in (tmp_path / "moved").iterdir()}
    assert sorted(written) == sorted(os.listdir(snapshot))
    assert not any(file.is_symlink() for file in written.values())
    assert torch.load(written["two.bin"])["b"].equal(torch.ones(3))
    assert {file.name: file.read_bytes() for file in (tmp_path / "hub" / "blobs").iterdir()} == before
    relocate(snapshot / "two.bin", out=tmp_path / "two.pt")
    assert torch.load(tmp_path / "two.pt")["b"].equal(torch.ones(3))


def test_a_shard_that_is_bad_leaves_no_folder(tmp_path):
    folder = index(tmp_path / "model", {"a": "one.bin", "b": "two.bin"})
    save(folder / "one.bin", {"a": torch.ones(2)})
    save(folder / "two.bin", {"b": torch.ones(300)})
    raw = bytearray((folder / "two.bin").read_bytes())
    at = raw.index(torch.ones(300).numpy().tobytes())
    raw[at + 5] ^= 1  # in the data: the checksum of the record is wrong
    (folder / "two.bin").write_bytes(raw)
    with pytest.raises(CheckpointRefused, match=r"R065 .*/model/two\.bin: the checksum of record 'data/0' is wrong"):
        relocate(folder, out=tmp_path / "moved")
    assert os.listdir(tmp_path) == ["model"]


# ---------------------------------------------------------------- relocating


def test_a_relocated_checkpoint_loads_without_the_device_and_is_otherwise_the_same(tmp_path):
    value = training()
    file = save(tmp_path / "a.pt", {**value, "note": "cuda:0", "where": torch.device("cuda:0")})
    before = file.read_bytes()
    with pytest.raises(RuntimeError, match="is_available"):
        torch.load(file)
    done = relocate(file, out=tmp_path / "b.pt")
    loaded = torch.load(tmp_path / "b.pt", weights_only=True, mmap=True)
    alike({name: loaded[name] for name in value}, value)
    assert (loaded["note"], loaded["where"]) == ("cuda:0", torch.device("cuda:0"))
    assert file.read_bytes() == before
    assert done.loaded
    assert (done.storages, done.after.devices()) == (8, {"cpu": done.before.nbytes})
    assert "8 storages of 8 from cuda:0 to cpu" in str(done)
    assert "['where']: names the device cuda:0, unchanged" in str(done)
    assert json.loads(done.to_json())["left_alone"] == [{"path": "['where']", "device": "cuda:0"}]


def test_only_the_locations_change_in_the_pickle_and_only_where_they_must(tmp_path):
    shared = "cuda:0"
    value = [torch.ones(1), shared, {"".join(["cuda", ":0"]): [shared, torch.ones(2)]}, "cpu"]
    file = save(tmp_path / "a.pt", value, shared)  # one and the same text: the pickle says it once
    assert forged.records(file)["data.pkl"].count(b"cuda:0") == 2  # and the key
    relocate(file, out=tmp_path / "b.pt")
    alike(torch.load(tmp_path / "b.pt"), value)
    old, new = forged.records(file), forged.records(tmp_path / "b.pt")
    assert {name for name in old if old[name] != new[name]} == {"data.pkl"}
    plain = save(tmp_path / "plain.pt", value, "cpu")
    assert meaning_of(tmp_path / "b.pt") == meaning_of(file) == meaning_of(plain)


def test_a_file_packed_again_from_its_records_is_the_same_file(tmp_path):
    file = save(tmp_path / "a.pt", {**training(), "nothing": torch.zeros(0)})
    repacked = io.BytesIO()
    with InputFile(file) as source:
        archived = Archive(source)
        packer = Packer(repacked, archived.folder, 64)
        for record in archived.records.values():
            packer.write(record.name, record.nbytes, source.pieces(record.offset, record.nbytes))
        packer.finish()
    assert repacked.getvalue() == file.read_bytes()


class Sparse(io.FileIO):
    """Writes no large pieces, only goes past them."""

    def write(self, content: Any) -> int:
        return super().write(content) if len(content) < 1 << 20 else self.seek(len(content), 1) and len(content)


def test_a_file_beyond_four_gigabytes_packed_again_is_the_same_file(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    with FakeTensorMode(), torch.serialization.skip_data(materialize_fake_tensors=True):
        sizes = (3 << 30, 5 << 30, 7, 0, (4 << 30) - 1, 4 << 30)
        torch.save([torch.empty(size, dtype=torch.int8, device="cuda") for size in sizes], file)
    # What torch leaves out it gives no checksum.
    checksum = lambda piece, before: 0 if isinstance(piece, mmap.mmap) else zlib.crc32(piece, before)  # noqa: E731
    monkeypatch.setattr(packing, "zlib", type("zlib", (), {"crc32": staticmethod(checksum)}))
    with InputFile(file) as source, Sparse(tmp_path / "b.pt", "w") as target:
        archived = Archive(source)
        packer = Packer(target, archived.folder, 64)
        for record in archived.records.values():
            left_out = record.name.startswith("data/") and record.nbytes
            piece = mmap.mmap(-1, record.nbytes) if left_out else source.read(record.offset, record.nbytes)
            packer.write(record.name, record.nbytes, [piece])
        packer.finish()
    compared = 0
    with file.open("rb") as one, (tmp_path / "b.pt").open("rb") as other:
        assert os.fstat(one.fileno()).st_size == os.fstat(other.fileno()).st_size
        for record in (*archived.records.values(), None):
            begin, end = compared, record.offset if record else None
            one.seek(begin), other.seek(begin)
            length = -1 if end is None else end - begin
            assert one.read(length) == other.read(length)
            compared = record.offset + record.nbytes if record else 0


@pytest.mark.slow
def test_the_places_of_records_are_those_that_torch_computes(tmp_path):
    file = save(tmp_path / "a.pt", training())
    relocate(file, out=tmp_path / "b.pt")
    command = f"import torch; torch.load({str(tmp_path / 'b.pt')!r}, weights_only=True, mmap=True)"
    # With this set, torch compares the places it would compute with those that are there.
    environment = {**os.environ, "TORCH_SERIALIZATION_DEBUG": "1"}
    code = f"import torch.utils.serialization as s; s.config.load.calculate_storage_offsets = True; {command}"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_protocols_that_weights_only_loading_knows(tmp_path, protocol):
    file = save(tmp_path / "a.pt", training(), pickle_protocol=protocol)
    relocate(file, out=tmp_path / "b.pt")
    assert inspect(tmp_path / "b.pt").devices().keys() == {"cpu"}


@pytest.mark.parametrize("protocol", [4, 5])
def test_newer_protocols_are_refused_as_weights_only_loading_does(tmp_path, protocol):
    file = save(tmp_path / "a.pt", training(), pickle_protocol=protocol)
    with pytest.raises(Exception, match="Unsupported operand"):
        torch.load(file, weights_only=True, map_location="cpu")
    with pytest.raises(CheckpointRefused, match=rf"R064 .* protocol {protocol}.*FRAME.*pickle_protocol"):
        inspect(file)


def test_a_file_of_the_other_byte_order_stays_so(tmp_path):
    value = {"a": torch.arange(6.0)}
    file = save(tmp_path / "a.pt", value)
    other = "big" if sys.byteorder == "little" else "little"
    turned = torch.arange(6.0).numpy().byteswap().tobytes()
    forged.changed(file, {"byteorder": other.encode(), "data/0": turned})
    done = relocate(file, out=tmp_path / "b.pt")
    assert not done.loaded
    assert "not loaded with torch" in str(done)
    assert torch.load(tmp_path / "b.pt")["a"].equal(value["a"])


def test_files_without_checksums_get_them(tmp_path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        file = save(tmp_path / "a.pt", training())
    finally:
        torch.serialization.set_crc32_options(before)
    assert zipfile.ZipFile(file).testzip() is not None
    relocate(file, out=tmp_path / "b.pt")
    assert zipfile.ZipFile(tmp_path / "b.pt").testzip() is None


def test_an_alignment_of_its_own_is_kept(tmp_path):
    from torch.utils.serialization import config

    with config.patch("save.storage_alignment", 4096):
        file = save(tmp_path / "a.pt", training())
    relocate(file, out=tmp_path / "b.pt")
    with InputFile(tmp_path / "b.pt") as source:
        assert {record.offset % 4096 for record in Archive(source).records.values()} == {0}


@pytest.mark.parametrize(("state", "why"), [(training, "all of it was on cpu already"), (dict, "it has no tensors")])
def test_what_is_on_the_device_already_is_copied_unchanged(tmp_path, state, why):
    file = save(tmp_path / "a.pt", state(), "cpu")
    done = relocate(file, out=tmp_path / "b.pt")
    assert f"b.pt: copied unchanged, {why}; " in str(done).splitlines()[0]
    assert done.storages == 0
    with InputFile(file) as one, InputFile(tmp_path / "b.pt") as other:
        records = [
            {r.name: source.read(r.offset, r.nbytes) for r in Archive(source).records.values()}
            for source in (one, other)
        ]
    assert records[0] == records[1]


def test_auto_is_the_machines_accelerator(tmp_path, monkeypatch):
    file = save(tmp_path / "a.pt", training(), "cpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    assert relocate(file, to="auto", out=tmp_path / "b.pt").target == "cpu"


def test_a_key_that_is_not_equal_to_itself_is_refused_in_a_line(tmp_path):
    file = save(tmp_path / "a.pt", {float("nan"): torch.ones(2)})
    assert paths_of(inspect(file)) == ["[nan]"]
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == "R071"


@pytest.mark.parametrize("to", ["meta", "xla", "nonsense", "cuda:x", ""])
def test_an_invalid_device_is_refused(tmp_path, to):
    assert refused(lambda: relocate(save(tmp_path / "a.pt", training()), to, out=tmp_path / "b.pt")) == "R060"


def test_an_existing_file_stays_unless_overwrite_is_given(tmp_path):
    file, out = save(tmp_path / "a.pt", training()), tmp_path / "b.pt"
    out.write_bytes(b"mine")
    assert refused(lambda: relocate(file, out=out)) == "R069"
    assert out.read_bytes() == b"mine"
    relocate(file, out=out, overwrite=True)
    assert inspect(out).devices().keys() == {"cpu"}
    (tmp_path / "link.pt").symlink_to(file)
    os.link(file, tmp_path / "twin.pt")
    (tmp_path / "folder").mkdir()
    before = file.read_bytes()
    for name in ("a.pt", "link.pt", "twin.pt", "folder"):
        assert refused(lambda name=name: relocate(file, out=tmp_path / name, overwrite=True)) == "R069"
    assert refused(lambda: relocate(file, out=tmp_path / "nowhere" / "b.pt")) == "R061"
    assert file.read_bytes() == before


def test_a_name_that_is_taken_meanwhile_is_left_to_its_owner(tmp_path, monkeypatch):
    file, out = save(tmp_path / "a.pt", training()), tmp_path / "b.pt"
    link = os.link
    monkeypatch.setattr(os, "link", lambda *names: (out.write_bytes(b"mine"), link(*names)))
    assert refused(lambda: relocate(file, out=out)) == "R069"
    assert out.read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.pt"]


CHANGES = {
    "touched": lambda file: os.utime(file, ns=(1, 1)),
    "cut short": lambda file: os.truncate(file, 300),
    "written over": lambda file: file.write_bytes(bytes(file.stat().st_size)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_meanwhile_gives_no_result(tmp_path, monkeypatch, change):
    file = save(tmp_path / "a.pt", training())
    write = Packer.write

    def and_change(self: Packer, name: str, *arguments: Any) -> int:
        change(file)
        return write(self, name, *arguments)

    monkeypatch.setattr(Packer, "write", and_change)
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == "R072"
    assert os.listdir(tmp_path) == ["a.pt"]


def test_a_file_that_is_replaced_or_removed_meanwhile_is_read_to_its_end(tmp_path, monkeypatch):
    value = training()
    file = save(tmp_path / "a.pt", value)
    write = Packer.write
    monkeypatch.setattr(Packer, "write", lambda *given: (file.unlink(missing_ok=True), write(*given))[1])
    relocate(file, out=tmp_path / "b.pt")
    alike(torch.load(tmp_path / "b.pt"), value)


def test_a_byte_that_is_written_wrongly_is_found(tmp_path, monkeypatch):
    file = save(tmp_path / "a.pt", training())
    put = Packer._put
    spoilt = torch.ones(4, 4).numpy().tobytes()
    file = save(tmp_path / "a.pt", {"a": torch.ones(4, 4)})
    monkeypatch.setattr(Packer, "_put", lambda self, content: put(self, content.replace(spoilt, b"\1" * 64)))
    assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == "R072"
    assert os.listdir(tmp_path) == ["a.pt"]


def test_a_disk_that_is_full_leaves_nothing(tmp_path):
    file = save(tmp_path / "a.pt", {"a": torch.ones(1 << 18)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        assert refused(lambda: relocate(file, out=tmp_path / "b.pt")) == "R061"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert os.listdir(tmp_path) == ["a.pt"]


KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from torchmove.checkpoints import relocate

folder = Path(sys.argv[1])
begin = time.perf_counter()
relocate(folder / "a.pt", out=folder / "whole.pt", progress=False)
seconds = time.perf_counter() - begin
for index in range(20):
    child = os.fork()
    if not child:
        relocate(folder / "a.pt", out=folder / f"out{index % 3}.pt", overwrite=True, progress=False)
        os._exit(0)
    time.sleep(random.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(json.dumps(sorted(os.listdir(folder))))
    for name in ("out0.pt", "out1.pt", "out2.pt"):
        if (folder / name).exists():
            assert (folder / name).read_bytes() == (folder / "whole.pt").read_bytes()
            (folder / name).unlink()
"""


@pytest.mark.slow
def test_one_who_is_killed_leaves_the_result_whole_or_not_there(tmp_path):
    file = save(tmp_path / "a.pt", {str(n): torch.full((1 << 20,), float(n)) for n in range(8)})
    before = file.read_bytes()
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) == 20
    left = {name for names in seen for name in names} - {"a.pt", "whole.pt", "out0.pt", "out1.pt", "out2.pt"}
    assert left, "nobody was killed while writing"
    assert all(re.fullmatch(r"\.out\d\.pt\.torchmove-[0-9a-f]{8}\.partial", name) for name in left)
    # Each kind of result is written again at most every third time, and then removes what is stale.
    for number in range(3):
        assert max(sum(name.startswith(f".out{number}") for name in names) for names in seen) <= 1
    assert file.read_bytes() == before
    for number in range(3):
        relocate(file, out=tmp_path / f"out{number}.pt", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "out0.pt", "out1.pt", "out2.pt", "whole.pt"]


MEMORY = """
import re, sys
from pathlib import Path
from torchmove.checkpoints import relocate

def peak_mib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

folder = Path(sys.argv[1])
relocate(folder / "small.pt", out=folder / "small-cpu.pt")
before = peak_mib()
relocate(folder / "large.pt", out=folder / "large-cpu.pt")
print(peak_mib() - before)
"""


@pytest.mark.slow
def test_relocating_takes_the_memory_of_a_few_pieces(tmp_path):
    save(tmp_path / "small.pt", {"a": torch.ones(4)})
    save(tmp_path / "large.pt", {"a": torch.ones(1 << 26)})
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True
    )
    assert float(done.stdout) < 48  # of 256


# ---------------------------------------------------------------- generated


def alike(one: Any, other: Any) -> None:
    """The same, bit for bit, with the same sharing."""
    storages: dict[int, int] = {}
    waiting = [(one, other)]
    while waiting:
        one, other = waiting.pop()
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            _alike_tensors(one, other, storages)
            waiting.append((getattr(one, "__dict__", None), getattr(other, "__dict__", None)))
        elif isinstance(one, dict):
            assert list(map(repr, one)) == list(map(repr, other))
            waiting += zip(one.values(), other.values(), strict=True)
        elif isinstance(one, (list, tuple)):
            waiting += zip(one, other, strict=True)
        else:
            assert repr(one) == repr(other)
    assert len(set(storages.values())) == len(storages)


def _alike_tensors(one: torch.Tensor, other: torch.Tensor, storages: dict[int, int]) -> None:
    assert (one.dtype, one.shape, one.layout, one.requires_grad) == (
        other.dtype,
        other.shape,
        other.layout,
        other.requires_grad,
    )
    if one.layout is torch.sparse_coo:
        _alike_tensors(one._indices(), other._indices(), storages)
        _alike_tensors(one._values(), other._values(), storages)
        return
    assert (one.stride(), one.storage_offset(), one.is_conj(), one.is_neg()) == (
        other.stride(),
        other.storage_offset(),
        other.is_conj(),
        other.is_neg(),
    )
    assert bytes(one.untyped_storage()) == bytes(other.untyped_storage())
    if one.untyped_storage().nbytes():
        mine, theirs = one.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
        assert storages.setdefault(mine, theirs) == theirs


DTYPE_NAMES = "float32 float64 float16 bfloat16 int64 int8 uint8 bool complex64 uint16 float8_e4m3fn float8_e5m2"
WORDS = st.sampled_from(["cuda:0", "cuda:1", "cpu", "storage", "0", "data", "torch", "a.weight", "é\n'"])
PLAIN = st.one_of(
    WORDS,
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.none(),
    st.binary(min_size=1, max_size=3),
    st.sampled_from([torch.device("cuda", 1), torch.device("cpu"), torch.float16, torch.Size([2, 3]), 2j]),
)


class Base(NamedTuple):
    """A storage to be made."""

    dtype: str
    filling: bytes

    def made(self) -> torch.Tensor:
        dtype = getattr(torch, self.dtype)
        raw = torch.tensor(list(self.filling), dtype=torch.uint8) & (1 if dtype is torch.bool else 255)
        # A storage of its own, with its whole length.
        return raw.repeat_interleave(dtype.itemsize).clone().view(dtype)


class View(NamedTuple):
    """A tensor to be made: a window of some kind on one of the storages."""

    base: int
    kind: str
    first: int
    last: int
    step: int
    word: str

    def made(self, bases: list[torch.Tensor]) -> torch.Tensor:
        base = bases[self.base % len(bases)]
        whole = base.view(base.shape)
        return VIEWS[self.kind](whole, self) if len(base) >= 4 else whole


def hung(tensor: torch.Tensor, view: View) -> torch.Tensor:
    tensor.note = view.word
    return tensor


def when(holds: Callable[[torch.dtype], bool], make: Callable[[torch.Tensor, View], torch.Tensor]) -> Any:
    return lambda tensor, view: make(tensor, view) if holds(tensor.dtype) else tensor


VIEWS: dict[str, Callable[[torch.Tensor, View], torch.Tensor]] = {
    "whole": lambda tensor, view: tensor,
    "slice": lambda tensor, view: tensor[view.first : view.last : view.step],
    "matrix": lambda tensor, view: tensor[:4].view(2, 2).t(),
    "expanded": lambda tensor, view: tensor[:1].expand(3, 5),
    "conjugated": when(lambda dtype: dtype.is_complex, lambda tensor, view: tensor.conj()),
    "negated": when(lambda dtype: dtype.is_complex, lambda tensor, view: tensor.clone().conj().imag),
    "sparse": when(
        lambda dtype: dtype is torch.float32,
        lambda tensor, view: torch.sparse_coo_tensor(
            torch.arange(len(tensor))[None], tensor, (len(tensor) + 2,), check_invariants=True
        ),
    ),
    "parameter": when(
        lambda dtype: dtype.is_floating_point,
        lambda tensor, view: nn.Parameter(tensor, requires_grad=view.step == 1),
    ),
    "hung": hung,
}


def built(recipe: Any, bases: list[torch.Tensor], known: dict[int, Any]) -> Any:
    """A recipe with its views made; what is one thing in it is one thing in the result."""
    if id(recipe) in known:
        return known[id(recipe)]
    if isinstance(recipe, View):
        made: Any = recipe.made(bases)
    elif isinstance(recipe, dict):
        made = type(recipe)((key, built(value, bases, known)) for key, value in recipe.items())
    elif type(recipe) in (list, tuple):
        made = type(recipe)(built(value, bases, known) for value in recipe)
    else:
        made = recipe
    known[id(recipe)] = made
    return made


BASES = st.lists(st.builds(Base, st.sampled_from(DTYPE_NAMES.split()), st.binary(max_size=12)), min_size=1, max_size=4)
SMALL = st.integers(0, 12)
TENSORS = st.builds(View, SMALL, st.sampled_from(list(VIEWS)), SMALL, SMALL, st.integers(1, 3), WORDS)
LEAVES = st.one_of(PLAIN, TENSORS)
KEYS = st.one_of(WORDS, st.integers(-5, 300), st.tuples(WORDS, st.integers(0, 3)), st.booleans())
CHECKPOINTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict),
        inner.map(lambda twice: [twice, twice]),
    ),
    max_leaves=15,
)


@given(recipe=st.one_of(CHECKPOINTS, st.lists(st.one_of(CHECKPOINTS, TENSORS), min_size=3)), storages=BASES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_checkpoint_is_the_same_after_its_journey(tmp_path_factory, recipe, storages):
    value = built(recipe, [base.made() for base in storages], {})
    folder = tmp_path_factory.mktemp("journey")
    places: dict[int, str] = {}
    where = lambda kept: places.setdefault(kept._cdata, ("cuda:0", "cuda:1", "cpu")[len(places) % 3])  # noqa: E731
    file, plain = save(folder / "a.pt", value, where), save(folder / "plain.pt", value, "cpu")
    contents = inspect(file)
    original = torch.load(plain)
    _found_as_torch_loads(contents, original)
    relocate(file, out=folder / "b.pt")
    alike(torch.load(folder / "b.pt"), original)
    assert meaning_of(folder / "b.pt") == meaning_of(plain) == meaning_of(file)
    relocate(folder / "b.pt", "cuda:1", out=folder / "c.pt")
    assert inspect(folder / "c.pt").devices().keys() == ({"cuda:1"} if contents.storages else set())
    assert meaning_of(folder / "c.pt") == meaning_of(file)
    alike(torch.load(folder / "c.pt", map_location="cpu"), original)


def _found_as_torch_loads(contents: Any, original: Any) -> None:
    for each in contents.entries:
        loaded = each.path.fetch({"": original})
        assert (each.dtype, each.shape) == (str(loaded.dtype).removeprefix("torch."), tuple(loaded.shape))
        assert contents.storages[each.storage].nbytes == loaded.untyped_storage().nbytes()
    assert len(contents.entries) >= (1 if isinstance(original, torch.Tensor) else 0)


def test_a_jagged_tensor_is_made_of_tensors_and_travels(tmp_path):
    from torch.nested._internal.nested_tensor import NestedTensor, _rebuild_njt

    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)], layout=torch.jagged)
    torch.save({"jagged": jagged}, tmp_path / "here.pt")
    with torch.serialization.safe_globals([NestedTensor, _rebuild_njt]):  # torch 2.15 does not allow them itself
        assert inspect(tmp_path / "here.pt").devices() == {"cpu": 96}
        relocate(tmp_path / "here.pt", to="cuda:1", out=tmp_path / "there.pt")
        relocate(tmp_path / "there.pt", to="cpu", out=tmp_path / "back.pt")
        back = torch.load(tmp_path / "back.pt")["jagged"]
    assert torch.equal(back.values(), jagged.values())
    assert torch.equal(back.offsets(), jagged.offsets())


def test_relocate_interprets_the_original_once_and_its_result_before_and_after_it_is_written(tmp_path, monkeypatch):
    interpreted: list[bytes] = []
    start = Reading.__init__

    def counted(self: Reading, pickled: bytes, *rest: Any) -> None:
        interpreted.append(pickled)
        start(self, pickled, *rest)

    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "a.pt")
    monkeypatch.setattr(Reading, "__init__", counted)
    relocate(tmp_path / "a.pt", to="cuda:0", out=tmp_path / "b.pt", progress=False)
    original, rewritten, result = interpreted
    assert rewritten == result != original
