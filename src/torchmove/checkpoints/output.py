"""May the result have this place? A free one, or that of an ordinary file that may go; with a name that fits.

A file becomes a file, and a folder or its index a folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchmove.checkpoints.kinds import SUFFIXES
from torchmove.checkpoints.source import Unfit
from torchmove.formatting import readable_bytes
from torchmove.results import PAGE_MARK

_FILES = (*SUFFIXES, ".ckpt", ".json")
_OTHER_FILES = (".safetensors", ".json")
_ANOTHER = "name another place"
_REPLACE = f"{_ANOTHER}; or have it replaced: overwrite=True, on the command line --overwrite"
_REMOVE = f"{_ANOTHER}, or remove it first: overwriting is for single files"
_NOT_ORDINARY = "and only an ordinary file is replaced"
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check(out: str, sources: Collection[Path], *, folder: bool, overwrite: bool) -> None:
    """Refuses what cannot be the place of the result. `folder`: the result is one."""
    place = Path(out)
    _refuse_name(out, folder=folder)
    refuse_source(place, [each.parent if folder else each for each in sources], "is the checkpoint itself")
    refuse_taken(place, folder=folder, overwrite=overwrite)
    _refuse_parent(place)
    needs, has = sum(each.stat().st_size for each in sources), shutil.disk_usage(place.parent).free
    if needs > has:
        raise Unfit("R061", f"needs {readable_bytes(needs)}, and {readable_bytes(has)} are free there")


def check_page(out: str, sources: Collection[Path], *, overwrite: bool) -> bool:
    """The same for a page: it takes the place of an ordinary file that may go, and of a page of before, which always
    may; never that of what it is made from. Returns whether a file is replaced."""
    place = Path(out)
    if out.endswith(os.sep):
        raise Unfit("R073", "is the name of a folder, and a page is a file", "name a file in it")
    refuse_source(place, sources, "is what this command reads")
    replaces = overwrite or _is_page(place)
    refuse_taken(place, folder=False, overwrite=replaces)
    _refuse_parent(place)
    return replaces


def _is_page(place: Path) -> bool:
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            return False
        with open(os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(len(PAGE_MARK)) == PAGE_MARK.encode()
    except OSError:
        return False


def refuse_source(place: Path, sources: Collection[Path], why: str) -> None:
    """By whatever name: a relative one, a link, another name of the same file."""
    if place.exists() and any(each.exists() and place.samefile(each) for each in sources):
        raise Unfit("R069", why, f"{_ANOTHER}: the original stays as it is")


def _refuse_parent(place: Path) -> None:
    if not place.parent.is_dir():
        raise Unfit("R061", "the folder that it shall be in is not there", "make that folder first")


def refuse_taken(out: Path, *, folder: bool, overwrite: bool) -> None:
    """Only an ordinary file is replaced, and only by a file: no folder, no pipe or device; and no link, which would
    leave open whether it goes or what it leads to."""
    try:
        mode = os.lstat(out).st_mode
    except FileNotFoundError:
        return
    if folder:
        raise Unfit("R069", "is there already", _REMOVE)
    if stat.S_ISDIR(mode):
        raise Unfit("R069", "is a folder", "name a file in it")
    if stat.S_ISLNK(mode):
        raise Unfit("R069", f"is a link, {_NOT_ORDINARY}", "name what it leads to, or another place")
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise Unfit("R069", f"is {what}, {_NOT_ORDINARY}", _ANOTHER)
    if not overwrite:
        raise Unfit("R069", "is there already", _REPLACE)


def _refuse_name(out: str, *, folder: bool) -> None:
    name = os.path.basename(out.rstrip(os.sep)).lower()
    if "\0" in out:
        raise Unfit("R061", "no name that a file can have")
    if folder and name.endswith(_FILES):
        raise Unfit("R073", "is the name of a file, and the result is a folder", "name a folder")
    if not folder and out.endswith(os.sep):
        raise Unfit("R073", "is the name of a folder, and the result is a file", "name a file in it")
    if not folder and name.endswith(_OTHER_FILES):
        raise Unfit("R073", "is a name of another kind of file than torch.save's, which the result is", "name it .pt")


_END = ".partial"


@contextmanager
def new_file(out: Path, mode: int, *, overwrite: bool) -> Iterator[Path]:
    """A hidden file to write; it becomes `out` when the block has ended well."""
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
    """The same with a folder."""
    with _hidden(out, lambda path: path.mkdir(mode | stat.S_IRWXU)) as hidden:
        yield hidden
        for file in hidden.iterdir():
            _persist(file)
        _persist_folder(hidden)
        refuse_taken(out, folder=True, overwrite=False)
        os.rename(hidden, out)  # onto a folder with something in it, this fails
    _persist_folder(out.parent)


def make_file(path: Path, mode: int) -> None:
    """An empty file that nobody may do more with than `mode` says, less what the process takes away (umask)."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    os.close(os.open(path, flags, mode | stat.S_IRUSR | stat.S_IWUSR))


def close_file(path: Path, mode: int) -> None:
    """It is written: its owner too may do with it what `mode` says, and read it."""
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) & (mode | stat.S_IRUSR))


@contextmanager
def _hidden(out: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    _remove_stale(out)
    hidden, lock = out.with_name(f"{_begin(out)}{secrets.token_hex(4)}{_END}"), -1
    try:
        try:
            lock = _locked(hidden, make)
            yield hidden
        finally:
            _remove(hidden)
    finally:
        _remove(hidden)  # again: Ctrl-C may have come while it was removed
        if lock >= 0:
            os.close(lock)


def _begin(out: Path) -> str:
    # A name has 255 bytes at most, and the hidden one is longer.
    return f".{os.fsdecode(os.fsencode(out.name)[:200])}.torchmove-"


def _locked(hidden: Path, make: Callable[[Path], object]) -> int:
    while True:
        make(hidden)
        # Between making and locking it, somebody may have taken it for a stale one.
        with suppress(FileNotFoundError):
            lock = os.open(hidden, os.O_RDONLY | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without locks: nobody takes anything for stale there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(hidden, lock):
                return lock
            os.close(lock)


def _is(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _remove_stale(out: Path) -> None:
    """What an earlier one left when it was killed: nobody holds its lock."""
    for name in os.listdir(out.parent):
        if not (name.startswith(_begin(out)) and name.endswith(_END)):
            continue
        with suppress(OSError):
            lock = os.open(out.parent / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(out.parent / name)
            finally:
                os.close(lock)


def _remove(path: Path) -> None:
    """If it is still there, and does not have its own name by now."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(hidden: Path, out: Path) -> None:
    """A name that is given only if it is free."""
    try:
        os.link(hidden, out)
    except OSError as error:
        refuse_taken(out, folder=False, overwrite=False)
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.rename(hidden, out)  # a file system without links: the best there is


def _persist(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _persist_folder(path: Path) -> None:
    with suppress(OSError):  # not every file system does that with folders
        _persist(path)
