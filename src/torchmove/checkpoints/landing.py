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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchmove.checkpoints.refusing import Unfit


@contextmanager
def new_file(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A hidden file to write; it becomes `out` when the block has ended well."""
    with _hidden(out, _make_file) as hidden:
        yield hidden
        _persist(hidden)
        if overwrite:
            os.replace(hidden, out)
        else:
            _link(hidden, out)
    _persist(out.parent)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """The same with a folder."""
    with _hidden(out, os.mkdir) as hidden:
        yield hidden
        for file in hidden.iterdir():
            _persist(file)
        _persist(hidden)
        refuse_existing(out)
        os.rename(hidden, out)  # onto a folder with something in it, this fails
    _persist(out.parent)


def refuse_existing(out: Path) -> None:
    if os.path.lexists(out):
        raise Unfit("R069", "is there already")


@contextmanager
def _hidden(out: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    _remove_stale(out)
    hidden, lock = _locked(out, make)
    try:
        yield hidden
    finally:
        with suppress(FileNotFoundError):  # it has its own name now
            _remove(hidden)
        os.close(lock)


def _locked(out: Path, make: Callable[[Path], object]) -> tuple[Path, int]:
    while True:
        hidden = out.with_name(f".{out.name}.torchmove-{secrets.token_hex(4)}.partial")
        make(hidden)
        lock = os.open(hidden, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Between making and locking it, somebody may have taken it for a stale one.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(hidden), os.fstat(lock)):
                return hidden, lock
        os.close(lock)


def _make_file(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def _remove_stale(out: Path) -> None:
    """What an earlier one left when it was killed: nobody holds its lock."""
    begin, end = f".{out.name}.torchmove-", ".partial"
    for name in os.listdir(out.parent):
        if not (name.startswith(begin) and name.endswith(end)):
            continue
        with suppress(OSError):
            lock = os.open(out.parent / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(out.parent / name)
            finally:
                os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _link(hidden: Path, out: Path) -> None:
    """A name that is given only if it is free."""
    try:
        os.link(hidden, out)
    except FileExistsError:
        raise Unfit("R069", "is there already") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        refuse_existing(out)  # a file system without links: the best there is
        os.rename(hidden, out)


def _persist(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
