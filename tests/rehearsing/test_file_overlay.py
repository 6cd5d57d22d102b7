"""What a script sees of its files while nothing is written: the same as on the disk, which stays as it was."""

from __future__ import annotations

import bz2
import glob
import io
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from torchmove.rehearsing import file_overlay

NAMES = ("a", "b", "folder", "folder/a", "folder/inner", "folder/inner/c", "new", "new/d")


def write(path, _):
    with open(path, "w") as file:
        return file.write("written")


def append(path, _):
    with io.open(path, "ab") as file:  # noqa: UP020 (also the other name)
        file.write(b" and appended")
    return Path(path).read_bytes()


def update(path, _):
    with open(path, "r+") as file:
        file.write("UP")


def low_level(path, _):
    number = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(number, b"low")
    os.close(number)


def scanned(path, _):
    with os.scandir(path) as entries:
        return sorted((each.name, each.path, each.is_dir(), each.is_file()) for each in entries)


def stored(path, _):
    np.savez(path, values=np.arange(3))
    with np.load(f"{path}.npz") as found:
        return found["values"].tolist()


# Lambdas, because the functions are patched later.
# ruff: noqa: PLW0108
def archived(path, other):
    with tarfile.open(f"{path}.tar", "w") as archive:
        archive.add(other)
    with bz2.open(f"{path}.bz2", "wt") as file:
        file.write("packed")
    with tarfile.open(f"{path}.tar") as archive:
        return archive.getnames()


OPERATIONS: dict[str, Callable[[str, str], object]] = {
    "write": write,
    "append": append,
    "update": update,
    "low_level": low_level,
    "exclusive": lambda path, _: open(path, "x").close(),
    "read": lambda path, _: Path(path).read_text(),
    "path_text": lambda path, _: Path(path).write_text("path"),
    "touch": lambda path, _: Path(path).touch(),
    "mkdir": lambda path, _: os.mkdir(path),
    "makedirs": lambda path, _: os.makedirs(path, exist_ok=True),
    "path_mkdir": lambda path, _: Path(path).mkdir(parents=True, exist_ok=True),
    "rmdir": lambda path, _: os.rmdir(path),
    "remove": lambda path, _: os.remove(path),
    "unlink": lambda path, _: Path(path).unlink(missing_ok=True),
    "rename": lambda path, other: os.rename(path, other),
    "replace": lambda path, other: str(Path(path).replace(other)),
    "copy": lambda path, other: shutil.copy(path, other),
    "move": lambda path, other: shutil.move(path, other),
    "rmtree": lambda path, _: shutil.rmtree(path),
    "listdir": lambda path, _: sorted(os.listdir(path)),
    "scandir": scanned,
    "glob": lambda path, _: sorted(glob.glob(f"{path}/**", recursive=True)),
    "rglob": lambda path, _: sorted(str(each) for each in Path(path).rglob("*")),
    "exists": lambda path, _: (os.path.exists(path), os.path.isdir(path), os.path.isfile(path)),
    "size": lambda path, _: os.path.isfile(path) and os.path.getsize(path),
    "chmod": lambda path, _: os.chmod(path, 0o600),
    "truncate": lambda path, _: os.truncate(path, 2),
    "numpy": stored,
    "archived": archived,
}


def filled(folder: Path) -> Path:
    (folder / "folder" / "inner").mkdir(parents=True)
    (folder / "a").write_text("first")
    (folder / "folder" / "a").write_text("second")
    (folder / "folder" / "inner" / "c").write_text("third")
    return folder


def seen(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, and the content of each file."""
    found: dict[str, bytes | None] = {}
    for place, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(place, name), folder)] = None
        for name in files:
            with open(os.path.join(place, name), "rb") as file:
                found[os.path.relpath(os.path.join(place, name), folder)] = file.read()
    return {name: b"" if name.endswith((".npz", ".tar")) else content for name, content in found.items()}


def outcomes(folder: Path, steps, around) -> list[object]:
    found: list[object] = []
    with around:
        os.chdir(folder)
        for name, path, other in steps:
            try:
                found.append((name, OPERATIONS[name](path, other)))
            except OSError as error:
                found.append((name, type(error), error.errno))
        found.append(seen(folder))
    return found


@pytest.mark.parametrize("seed", range(100))
def test_a_script_sees_its_files_as_on_the_disk_and_the_disk_stays_as_it_was(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(seed)
    steps = [(draw.choice([*OPERATIONS]), draw.choice(NAMES), draw.choice(NAMES)) for _ in range(25)]
    # A folder cannot be moved into itself; what becomes of it then differs from one system to the next.
    steps = [(name, path, other) for name, path, other in steps if not other.startswith(path)]
    for name in ("real", "other", "overlay"):
        (tmp_path / name).mkdir()
    expected = outcomes(filled(tmp_path / "real"), steps, nullcontext())
    other = filled(tmp_path / "other")
    before = seen(other)
    os.chdir(tmp_path)
    found = outcomes(other, steps, file_overlay.nothing_written(str(tmp_path / "overlay")))
    assert found == expected
    assert seen(other) == before


def test_the_working_folder_may_be_one_that_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with file_overlay.nothing_written(tempfile.mkdtemp(dir=tmp_path.parent)):
        os.makedirs("made/here")
        os.chdir("made/here")
        Path("file").write_text("found")
        assert os.getcwd() == str(tmp_path / "made" / "here")
        assert (tmp_path / "made" / "here" / "file").read_text() == "found"
        assert sorted(os.listdir("..")) == ["here"]
    assert (os.getcwd(), os.listdir()) == (str(tmp_path), [])


def test_an_error_names_the_path_that_the_script_has_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with file_overlay.nothing_written(tempfile.mkdtemp(dir=tmp_path.parent)):
        Path("there").write_text("")
        os.remove("there")
        with pytest.raises(FileNotFoundError) as raised:
            open("there")  # noqa: SIM115
        assert raised.value.filename == "there"
        with pytest.raises(FileNotFoundError, match="no/such/folder"), open("no/such/folder/file", "w"):
            pass
        with open("named", "w") as file:
            assert file.name == "named"


def test_links_are_copies_and_devices_are_themselves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("content")
    with file_overlay.nothing_written(tempfile.mkdtemp(dir=tmp_path.parent)):
        os.symlink("file", "latest")
        assert Path("latest").read_text() == "content"
        with open(os.devnull, "w") as nowhere:
            nowhere.write("gone")
    assert os.listdir() == ["file"]


def test_a_function_that_a_library_has_kept_is_the_disks_again_afterwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with file_overlay.nothing_written(tempfile.mkdtemp(dir=tmp_path.parent)):
        kept_open, kept_mkdir, kept_listdir = open, os.mkdir, os.listdir
    kept_mkdir("made")
    with kept_open("file", "w") as file:
        file.write("content")
    assert sorted(kept_listdir()) == ["file", "made"]
    assert (tmp_path / "file").read_text() == "content"
