"""Atomic writes: a result is written to a free or replaceable place, complete or not at all.

It is written under a hidden name beside its place, `.NAME.torchmove-XXXX.partial`, and gets its name when all of it is
on the disk. A killed process leaves its temporary file, which no reader takes for a checkpoint; the next writer of the
same result removes it, unless its lock shows that it is still being written. On Windows, which has no such locks, it
stays.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchmove.checkpoints.file_kinds import SUFFIXES
from torchmove.checkpoints.untrusted import NO_WAIT, Unfit
from torchmove.formatting import readable_bytes
from torchmove.results import PAGE_MARK

if sys.platform != "win32":
    import fcntl

_FILES = (*SUFFIXES, ".ckpt", ".json")
_OTHER_FILES = (".safetensors", ".json")
_ANOTHER = "choose another path"
_REPLACE = "use --overwrite (overwrite=True), or choose another path"
_REMOVE = f"{_ANOTHER}, or remove the folder first; only single files are overwritten"
_NOT_ORDINARY = "only a regular file can be replaced"
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check_output(out: str, sources: Collection[Path], *, folder: bool, overwrite: bool) -> None:
    """Raise Unfit if the result cannot be written to `out`. `folder`: the result is a folder."""
    place = Path(out)
    _refuse_name(out, folder=folder)
    refuse_source(place, [each.parent if folder else each for each in sources], "is the checkpoint itself")
    refuse_taken(place, folder=folder, overwrite=overwrite)
    _refuse_parent(place)
    needs, has = sum(each.stat().st_size for each in sources), shutil.disk_usage(place.parent).free
    if needs > has:
        raise Unfit("R061", f"needs {readable_bytes(needs)}, but only {readable_bytes(has)} are free on that disk")


def check_page(out: str, sources: Collection[Path], *, overwrite: bool) -> bool:
    """Raise Unfit if a page cannot be written to `out`. It may replace an earlier page, or with `overwrite` any regular
    file, but never a file that it is made from. Returns whether a file is replaced."""
    place = Path(out)
    if out.endswith(os.sep):
        raise Unfit("R073", "is the name of a folder, but a page is a file", "add a file name")
    refuse_source(place, sources, "is a file that this command reads")
    replaces = overwrite or _is_page(place)
    refuse_taken(place, folder=False, overwrite=replaces)
    _refuse_parent(place)
    return replaces


def _is_page(place: Path) -> bool:
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            return False
        with open(os.open(place, os.O_RDONLY | _NO_LINK | NO_WAIT), "rb") as file:
            return file.read(len(PAGE_MARK)) == PAGE_MARK.encode()
    except OSError:
        return False


def refuse_source(place: Path, sources: Collection[Path], why: str) -> None:
    """Raise Unfit if `place` is one of the sources, by any name: a relative path, a link, a hard link."""
    if place.exists() and any(each.exists() and place.samefile(each) for each in sources):
        raise Unfit("R069", why, f"{_ANOTHER}; the original is never overwritten")


def _refuse_parent(place: Path) -> None:
    if not place.parent.is_dir():
        raise Unfit("R061", "its folder does not exist", "create the folder first")


def refuse_taken(out: Path, *, folder: bool, overwrite: bool) -> None:
    """Raise Unfit if `out` exists and cannot be replaced. Only a regular file is, and only by a file; not a link, since
    it is ambiguous whether the link or its target would be replaced."""
    try:
        mode = os.lstat(out).st_mode
    except FileNotFoundError:
        return
    if folder:
        raise Unfit("R069", "already exists", _REMOVE)
    if stat.S_ISDIR(mode):
        raise Unfit("R069", "is a folder", "add a file name")
    if stat.S_ISLNK(mode):
        raise Unfit("R069", f"is a link; {_NOT_ORDINARY}", "give the link's target, or choose another path")
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise Unfit("R069", f"is {what}; {_NOT_ORDINARY}", _ANOTHER)
    if not overwrite:
        raise Unfit("R069", "already exists", _REPLACE)


def _refuse_name(out: str, *, folder: bool) -> None:
    name = os.path.basename(out.rstrip(os.sep)).lower()
    if "\0" in out:
        raise Unfit("R061", "not a valid file name")
    if folder and name.endswith(_FILES):
        raise Unfit("R073", "is the name of a file, but the result is a folder", "give the name of a folder")
    if not folder and out.endswith(os.sep):
        raise Unfit("R073", "is the name of a folder, but the result is a file", "add a file name")
    if not folder and name.endswith(_OTHER_FILES):
        raise Unfit(
            "R073", "has the suffix of another format; the result is a file of torch.save", "use the suffix .pt"
        )


_END = ".partial"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def new_file(out: Path, mode: int, *, overwrite: bool) -> Iterator[Path]:
    """A temporary file to write; it is renamed to `out` when the block ends without an error."""
    with _hidden(out, lambda path: make_file(path, mode)) as hidden:
        yield hidden
        _persist(hidden)
        refuse_taken(out, folder=False, overwrite=overwrite)
        if overwrite:
            os.replace(hidden, out)
        else:
            _link(hidden, out)
    _persist_folder(out.parent)


@contextmanager
def new_folder(out: Path, mode: int) -> Iterator[Path]:
    """A temporary folder to fill; it is renamed to `out` when the block ends without an error."""
    with _hidden(out, lambda path: path.mkdir(mode | stat.S_IRWXU)) as hidden:
        yield hidden
        for file in hidden.iterdir():
            _persist(file)
        _persist_folder(hidden)
        refuse_taken(out, folder=True, overwrite=False)
        os.rename(hidden, out)  # fails if `out` is a folder that is not empty
    _persist_folder(out.parent)


def make_file(path: Path, mode: int) -> None:
    """Create an empty file with the permissions `mode`, less the umask, and writable by its owner."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode | stat.S_IRUSR | stat.S_IWUSR))


def close_file(path: Path, mode: int) -> None:
    """Set the owner's permissions to `mode` as well, now that the file is written; it stays readable."""
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) & (mode | stat.S_IRUSR))


@contextmanager
def _hidden(out: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    _remove_leftovers(out)
    hidden, lock = out.with_name(f"{_begin(out)}{secrets.token_hex(4)}{_END}"), -1
    try:
        try:
            lock = _locked(hidden, make)
            yield hidden
        finally:
            _remove(hidden)
    finally:
        _remove(hidden)  # again, in case of a Ctrl-C during the first removal
        if lock >= 0:
            os.close(lock)


def _begin(out: Path) -> str:
    # File names are limited to 255 bytes, and the temporary name is longer than `out`.
    return f".{os.fsdecode(os.fsencode(out.name)[:200])}.torchmove-"


def _locked(hidden: Path, make: Callable[[Path], object]) -> int:
    if sys.platform == "win32":  # where an open file cannot be renamed either
        make(hidden)
        return -1
    while True:
        make(hidden)
        # Before it is locked, another process may remove it as a leftover: then create it again.
        with suppress(FileNotFoundError):
            lock = os.open(hidden, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: leftovers are not removed there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(hidden, lock):
                return lock
            os.close(lock)


def _is(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _remove_leftovers(out: Path) -> None:
    """Remove temporary files of killed processes: those that are not locked."""
    if sys.platform == "win32":
        return
    for name in os.listdir(out.parent):
        if not (name.startswith(_begin(out)) and name.endswith(_END)):
            continue
        with suppress(OSError):
            lock = os.open(out.parent / name, os.O_RDONLY | _NO_LINK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(out.parent / name)
            finally:
                os.close(lock)


def _remove(path: Path) -> None:
    """Remove the temporary file, if it exists and has not been renamed."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(hidden: Path, out: Path) -> None:
    """Rename, but only if `out` does not exist."""
    try:
        os.link(hidden, out)
    except OSError as error:
        refuse_taken(out, folder=False, overwrite=False)
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.rename(hidden, out)  # a file system without hard links: not atomic against another writer


def _persist(path: Path) -> None:
    # Windows writes out only what is open for writing.
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _persist_folder(path: Path) -> None:
    with suppress(OSError):  # not every file system can fsync a folder
        _persist(path)
