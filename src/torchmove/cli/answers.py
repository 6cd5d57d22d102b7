"""Results of a command go to stdout, which is reserved for them: the user's own output goes to stderr."""

from __future__ import annotations

import os
import sys
from typing import IO, TextIO

import click

_ANSWERS = "torchmove.answers"


def say(words: str) -> None:
    """Print to the stream of the command's results."""
    stream: IO[str] | None = click.get_current_context().meta.get(_ANSWERS) or sys.stdout
    if stream is None:  # stdout is closed
        return
    try:
        click.echo(_encodable(words, stream), file=stream)
    except OSError:
        discard_output(stream)
        raise


def _encodable(words: str, stream: IO[str]) -> str:
    """The text with characters replaced that the terminal cannot show: mostly the rules of tables."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        words.encode(encoding)
    except UnicodeEncodeError:
        return words.replace("─", "-").encode(encoding, "replace").decode(encoding)
    return words


def discard_output(stream: IO[str]) -> None:
    """Redirect a broken stream to nowhere; Python would flush it again at exit and report an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def reserve_stdout() -> None:
    """Redirect stdout to stderr before the user's code runs; only `say` still writes to stdout.

    The redirection is permanent, since user code may print from C, in a thread or at exit.
    """
    meta = click.get_current_context().meta
    if _ANSWERS not in meta and sys.stdout is not None:
        sys.stdout.flush()
        meta[_ANSWERS] = _own(sys.stdout)
        sys.stdout = sys.stderr


def _own(stdout: TextIO) -> IO[str]:
    try:
        number = stdout.fileno()
    except OSError:  # not a file: in a test or a notebook
        return stdout
    if sys.stderr is None:  # closed: os.dup would reuse its descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    own = open(os.dup(number), "w", encoding=stdout.encoding, errors=stdout.errors)  # noqa: SIM115
    os.dup2(2, number)
    return own


def color() -> bool | None:
    """False if the environment turns colors off (no-color.org); None: colors in a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
