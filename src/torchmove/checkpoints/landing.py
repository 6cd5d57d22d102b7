"""A result appears whole or not at all.

It is written under a hidden name beside its place, `.NAME.torchmove-XXXX.partial`, and takes its own name when all of
it is on the disk. Whoever is killed leaves such a file behind, which nothing takes for a checkpoint; the next one that
writes the same result removes it. The one who writes holds a lock, so that nobody removes what is still written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchmove.checkpoints.placing import refuse_taken

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
