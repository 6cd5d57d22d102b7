"""Where a command's answers go: to stdout, which is theirs alone, whatever the user's code prints."""

from __future__ import annotations

import os
import sys
from typing import IO, TextIO

import click

_ANSWERS = "torchmove.answers"


def say(words: str) -> None:
    stream: IO[str] | None = click.get_current_context().meta.get(_ANSWERS) or sys.stdout
    if stream is None:  # closed: nobody wants to hear it
        return
    try:
        click.echo(_in_its_letters(words, stream), file=stream)
    except OSError:
        give_up(stream)
        raise


def _in_its_letters(words: str, stream: IO[str]) -> str:
    """With what the terminal cannot show replaced: mostly the rules of tables."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        words.encode(encoding)
    except UnicodeEncodeError:
        return words.replace("─", "-").encode(encoding, "replace").decode(encoding)
    return words


def give_up(stream: IO[str]) -> None:
    """What could not be written would be tried again at exit, and complained of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def keep_answers_apart() -> None:
    """From here on the user's code runs. Stdout is for the answer; what that code prints goes to stderr.

    Be it printed in C, in a thread or at exit: so nothing is put back.
    """
    meta = click.get_current_context().meta
    if _ANSWERS not in meta and sys.stdout is not None:
        sys.stdout.flush()
        meta[_ANSWERS] = _own(sys.stdout)
        sys.stdout = sys.stderr


def _own(stdout: TextIO) -> IO[str]:
    try:
        number = stdout.fileno()
    except OSError:  # a test's, or a notebook's
        return stdout
    if sys.stderr is None:  # closed: its number is free, and would be taken
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    own = open(os.dup(number), "w", encoding=stdout.encoding, errors=stdout.errors)  # noqa: SIM115
    os.dup2(2, number)
    return own


def colour() -> bool | None:
    """None: where it is a terminal. See no-color.org."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
