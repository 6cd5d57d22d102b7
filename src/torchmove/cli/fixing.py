"""`rehearse --fix`: each version of the program is rehearsed in a process of its own, so that it is imported afresh.

Nothing is written before the end: the process imports the edited sources in the place of the files. It finds its
request in a folder and leaves its answer there.
"""

from __future__ import annotations

import importlib.util
import json
import linecache
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import click

from torchmove.cli.output import CommandRefused, described, first_line
from torchmove.cli.rehearsed_targets import Request, rehearsed
from torchmove.cli.targets import Target, TargetFailed
from torchmove.errors import TorchmoveError

_REQUEST, _ANSWER = "request", "answer"
# -P keeps the working directory off the path, unless it is on the path of this process.
_START = """import json, sys
sys.path[:] = json.loads(sys.argv[2])
from torchmove.cli.fixing import answer
answer(sys.argv[1])"""


def fixed(target: Target, request: Request, within: Path | None, *, write: bool) -> Any:
    """Edit the program of a target, and return the Fixes."""
    if importlib.util.find_spec("libcst") is None:
        raise CommandRefused("--fix edits with libcst, which is not installed. Fix: pip install libcst")
    if sys.version_info < (3, 11):
        raise CommandRefused("--fix needs to know the positions of expressions. Fix: use Python 3.11 or newer")
    from torchmove.rehearsing.fixing.result import fixes_of
    from torchmove.rehearsing.fixing.rounds import fix
    from torchmove.rehearsing.fixing.source_files import SourceFiles, write_all

    request = request._replace(evidence=True)
    program = next((each for each in target.files() if each.is_file()), target.folder / target.where)
    files = SourceFiles(within or program.parent)
    done = fix(lambda sources: _in_a_process(target, request, sources), files.read)
    if write and done.sources:
        write_all(done.sources, done.originals)
    return fixes_of(done, written=write and bool(done.sources))


# ---------------------------------------------------------------- the process that asks


def _in_a_process(target: Target, request: Request, sources: Mapping[str, bytes]) -> Any:
    from torchmove.rehearsing.fixing.rounds import RehearsalFailed

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, _REQUEST).write_bytes(pickle.dumps((target, request, dict(sources))))
        command = [sys.executable, "-P", "-c", _START, folder, json.dumps(sys.path)]
        # The program sees no terminal, and what it prints goes to stderr.
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False)
        try:
            found = pickle.loads(Path(folder, _ANSWER).read_bytes())
        except FileNotFoundError:
            found = TargetFailed(f"{target.spec} ended the process that rehearses it")
    if isinstance(found, Exception):
        if sources:
            raise RehearsalFailed(str(found))
        raise found
    return found


# ---------------------------------------------------------------- the process that rehearses


def answer(folder: str) -> None:
    """Rehearse the edited program that the request in a folder names."""
    target, request, sources = pickle.loads(Path(folder, _REQUEST).read_bytes())
    import_instead({os.path.realpath(file): source for file, source in sources.items()})
    with click.Context(click.Command("rehearse")):
        try:
            found = rehearsed(target, request)
        except click.ClickException as error:
            found = click.UsageError(error.format_message())
        except TorchmoveError as error:
            found = TargetFailed(first_line(error))
        except Exception as error:
            found = TargetFailed(described(error))
    hidden = Path(folder, f"{_ANSWER}.partial")
    hidden.write_bytes(pickle.dumps(found))
    hidden.rename(Path(folder, _ANSWER))


def import_instead(sources: Mapping[str, bytes]) -> None:
    """Let these files be imported with these sources, and shown with them."""
    code_of = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        source = sources.get(os.path.realpath(path))
        if source is None:
            return code_of(loader, name)
        show_instead(path, source)
        code: CodeType = loader.source_to_code(source, path)
        return code

    setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010  (mypy does not let a method be replaced)


def show_instead(path: str, source: bytes) -> None:
    """Let the lines of a file be those of this source, for tracebacks and rehearsals."""
    text = importlib.util.decode_source(source)
    # Without a modification time an entry is never checked against the file.
    linecache.cache[path] = (len(source), None, text.splitlines(keepends=True), path)
