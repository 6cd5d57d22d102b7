"""Where a relocated checkpoint goes: what may be replaced, which names fit, and who may read it."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from forged import index, linked, refused, save, training

from torchmove.checkpoints import atomic_writes
from torchmove.checkpoints.archive import Packer
from torchmove.checkpoints.inspecting import inspect
from torchmove.checkpoints.relocating import relocate
from torchmove.cli import main
from torchmove.errors import CheckpointRefused


def sharded(folder: Path) -> Path:
    index(folder, {"a": "one.bin", "b": "two.bin"})
    save(folder / "one.bin", {"a": torch.ones(2)})
    save(folder / "two.bin", {"b": torch.ones(3)})
    return folder


def seen(folder: Path) -> dict[str, object]:
    """What is there, without following links."""
    found = {path: os.lstat(path) for path in sorted(folder.rglob("*"))}
    return {str(path): (each.st_ino, each.st_mode, each.st_mtime_ns) for path, each in found.items()}


def taken(folder: Path, kind: str) -> Path:
    place = folder / "out"
    (folder / "other.pt").write_bytes(b"mine")
    if kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a link to a pipe":
        os.mkfifo(folder / "pipe")
        place.symlink_to("pipe")
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(place))  # its name may have 107 bytes
    elif kind == "a link to a file":
        place.symlink_to("other.pt")
    elif kind == "a link to nothing":
        place.symlink_to("nothing")
    elif kind == "a link to a folder":
        (folder / "folder").mkdir()
        place.symlink_to("folder")
    elif kind == "a folder":
        place.mkdir()
    return place


SAID = {
    "a pipe": "is a pipe; .*choose another path",
    "a socket": "is a socket; .*choose another path",
    **dict.fromkeys(("a link to a pipe", "a link to a file", "a link to nothing"), "is a link; .*the link's target"),
    "a link to a folder": "is a link; .*the link's target",
    "a folder": "is a folder.*add a file name",
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("kind", "said"), SAID.items(), ids=SAID)
def test_only_an_ordinary_file_is_replaced(tmp_path, monkeypatch, kind, said, overwrite):
    monkeypatch.chdir(tmp_path)
    file, out = save(tmp_path / "a.pt", training()), taken(tmp_path, kind)
    before = seen(tmp_path)
    with pytest.raises(CheckpointRefused, match=f"R069 .*{said}"):
        relocate(file, out=out, overwrite=overwrite)
    assert refused(lambda: relocate(sharded(tmp_path / "model"), out=out, overwrite=overwrite)) == "R069"
    after = seen(tmp_path)
    assert {name: after[name] for name in before} == before
    assert (tmp_path / "other.pt").read_bytes() == b"mine"


def test_what_takes_the_place_meanwhile_is_not_replaced_either(tmp_path, monkeypatch):
    file, out = save(tmp_path / "a.pt", training()), tmp_path / "b.pt"
    persist = atomic_writes._persist
    monkeypatch.setattr(atomic_writes, "_persist", lambda path: (persist(path), os.mkfifo(out)))
    assert refused(lambda: relocate(file, out=out, overwrite=True)) == "R069"
    assert stat.S_ISFIFO(os.lstat(out).st_mode)
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.pt"]


def test_the_remedy_fits_what_is_written(tmp_path):
    file, folder = save(tmp_path / "a.pt", training()), sharded(tmp_path / "model")
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(CheckpointRefused, match=r"R069 .*already exists.*use --overwrite \(overwrite=True\), or "):
        relocate(file, out=tmp_path / "there")
    for overwrite in (False, True):
        with pytest.raises(CheckpointRefused, match=r"R069 .*remove the folder first; only single files are "):
            relocate(folder, out=tmp_path / "there", overwrite=overwrite)
    with pytest.raises(CheckpointRefused, match=r"R069 .*is a folder.*add a file name$"):
        relocate(file, out=tmp_path)
    with pytest.raises(CheckpointRefused, match=r"R069 .*is the checkpoint itself"):
        relocate(folder, out=folder)
    with pytest.raises(CheckpointRefused, match=r"R061 .*folder does not exist.*create the folder first$"):
        relocate(file, out=tmp_path / "nowhere" / "b.pt")


@pytest.mark.parametrize("spelled", ["a.pt", "./a.pt", "../in/a.pt", "link/a.pt", "link.pt", "twin.pt"])
def test_the_checkpoint_itself_is_not_replaced_however_it_is_spelled(tmp_path, monkeypatch, spelled):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    file = save(tmp_path / "in" / "a.pt", training())
    Path("link").symlink_to(tmp_path / "in")
    Path("link.pt").symlink_to("a.pt")
    os.link("a.pt", "twin.pt")
    before = file.read_bytes()
    with pytest.raises(CheckpointRefused, match=r"R069 .*is the checkpoint itself"):
        relocate(file, out=spelled, overwrite=True)
    with pytest.raises(CheckpointRefused, match=r"R069 .*is the checkpoint itself"):
        relocate("link.pt", out=spelled, overwrite=True)
    assert file.read_bytes() == before
    assert sorted(os.listdir()) == ["a.pt", "link", "link.pt", "twin.pt"]


@pytest.mark.parametrize("name", ["b.safetensors", "b.SAFETENSORS", "b.index.json", "b/"])
def test_a_file_is_not_written_under_the_name_of_something_else(tmp_path, name):
    file = save(tmp_path / "a.pt", training())
    assert refused(lambda: relocate(file, out=f"{tmp_path}/{name}")) == "R073"
    done = CliRunner().invoke(main, ["relocate", str(file), "-o", f"{tmp_path}/{name}"])
    assert done.exit_code == 5
    assert "R073" in done.output
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("name", ["b", "b.pt", "b.bin", "b.ckpt", "b.v2", "b" * 255, "é" * 127])
def test_any_other_name_is_the_name_of_the_file(tmp_path, name):
    file = save(tmp_path / "a.pt", training())
    relocate(file, out=tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["a.pt", name]
    assert inspect(tmp_path / name).devices().keys() == {"cpu"}


@pytest.mark.parametrize("name", ["b.safetensors", "b.pt", "b.bin", "b.json", "b.bin/"])
def test_a_folder_is_not_written_under_the_name_of_a_file(tmp_path, name):
    folder = sharded(tmp_path / "model")
    for path in (folder, folder / "pytorch_model.bin.index.json"):
        assert refused(lambda path=path: relocate(path, out=f"{tmp_path}/{name}")) == "R073"
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_with_one_file_becomes_a_folder(tmp_path):
    (tmp_path / "model").mkdir()
    save(tmp_path / "model" / "a.pt", training())
    relocate(tmp_path / "model", out=f"{tmp_path}/moved/")
    assert os.listdir(tmp_path / "moved") == ["a.pt"]
    assert inspect(tmp_path / "moved").devices().keys() == {"cpu"}


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    file = save(tmp_path / "a.pt", training())
    for name in ("b\0.pt", "b" * 256, "a.pt/b.pt"):
        assert refused(lambda name=name: relocate(file, out=tmp_path / name)) == "R061"
    assert os.listdir(tmp_path) == ["a.pt"]


def interrupted(source: Path, out: Path, at: int) -> bool:
    """Ctrl-C at this line of what gives a result its place, counted as they are run; False if there are not so many."""
    left = itertools.count(at, -1)

    def within(frame: Any, event: str, _: object) -> Any:
        if event == "line" and next(left) == 0:
            raise KeyboardInterrupt
        return within

    traced = sys.gettrace()
    sys.settrace(lambda frame, *_: within if frame.f_code.co_filename == atomic_writes.__file__ else None)
    try:
        relocate(source, out=out, progress=False)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(traced)
    return False


@pytest.mark.parametrize("folder", [False, True])
def test_one_who_is_interrupted_at_any_moment_leaves_the_result_or_nothing(tmp_path, folder):
    source = sharded(tmp_path / "model") if folder else save(tmp_path / "a.pt", training())
    out, ends = tmp_path / "out", set()
    for at in itertools.count():
        if not interrupted(source, out, at):
            break
        ends.add(out.exists())
        if out.exists():
            inspect(out)
            shutil.rmtree(out) if folder else out.unlink()
        assert os.listdir(tmp_path) == [source.name]
    assert ends == {True, False}


# ---------------------------------------------------------------- permissions


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("given", "taken_away", "got"),
    [
        (0o600, 0o022, 0o600),
        (0o640, 0o022, 0o640),
        (0o666, 0o022, 0o644),
        (0o644, 0o077, 0o600),
        (0o400, 0o022, 0o400),
        (0o444, 0o022, 0o444),
        (0o4755, 0o022, 0o755),
    ],
    ids=oct,
)
def test_the_result_has_no_more_permissions_than_the_original(tmp_path, umask, given, taken_away, got):
    file = save(tmp_path / "a.pt", training())
    (tmp_path / "over.pt").write_bytes(b"old")
    os.chmod(file, given)
    umask(taken_away)
    relocate(file, out=tmp_path / "b.pt")
    relocate(file, out=tmp_path / "over.pt", overwrite=True)
    assert [oct(mode(tmp_path / name)) for name in ("b.pt", "over.pt")] == [oct(got)] * 2


@pytest.mark.parametrize("folder", [False, True])
def test_permissions_do_not_grow_while_the_result_is_written(tmp_path, umask, monkeypatch, folder):
    umask(0)
    source = sharded(tmp_path / "model") if folder else save(tmp_path / "a.pt", training())
    for path in (source, *source.rglob("*")):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
    write, modes = Packer.write, set()

    def and_look(self: Packer, *given: object) -> int:
        (hidden,) = tmp_path.glob(".*.partial")
        modes.update(mode(path) for path in (hidden, *hidden.rglob("*")))
        return write(self, *given)

    monkeypatch.setattr(Packer, "write", and_look)
    relocate(source, out=tmp_path / "b")
    assert modes == ({0o700, 0o600} if folder else {0o600})


def test_folders_and_their_files_keep_their_permissions(tmp_path, umask):
    umask(0o002)
    folder = sharded(tmp_path / "model")
    os.chmod(folder, 0o750)
    os.chmod(folder / "one.bin", 0o600)
    os.chmod(folder / "two.bin", 0o444)
    os.chmod(folder / "pytorch_model.bin.index.json", 0o640)
    relocate(folder, out=tmp_path / "moved")
    assert {path.name: oct(mode(path)) for path in (tmp_path / "moved").iterdir()} == {
        "one.bin": "0o600",
        "two.bin": "0o444",
        "pytorch_model.bin.index.json": "0o640",
    }
    assert oct(mode(tmp_path / "moved")) == "0o750"


def test_of_a_link_it_is_what_it_leads_to_that_counts(tmp_path, umask):
    umask(0o022)
    snapshot = linked(sharded(tmp_path / "model"))
    for file in snapshot.iterdir():
        os.chmod(file, 0o600)
    relocate(snapshot, out=tmp_path / "moved")
    assert {mode(path) for path in (tmp_path / "moved").iterdir()} == {0o600}
