"""A page of the documentation as a program: what it shows is run, and what it says it prints is compared.

- The ```python blocks of a page run in order, in one namespace. A block with title="step.py" is also written to a file
  of that name, in a folder of the page's own; what is named as pytest wants it is left to pytest.
- The lines of a ```console block are commands, run in that folder, beside `examples` and `benchmarks`. A command
  succeeds, unless its line says `# exits with 1`.
- What a block prints is what the ```text block right behind it shows, as doctest compares: `...` stands for anything,
  and blanks and ends of lines for each other. Nothing shown: nothing printed. A block that raises shows the error's
  last lines, as Python does.
- `<!-- setup` ... `-->` is Python too, for what the reader need not see. What it prints does not matter.

Pages speak of "cuda". Where another device plays it, its name is put in there, and taken out of what was printed.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_PIECE = re.compile(
    r"^```(?P<kind>\w*)[ \t]*(?P<rest>[^\n]*)\n(?P<code>.*?)^```$|^<!-- setup\n(?P<setup>.*?)^-->$", re.M | re.S
)
_COMPARE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_SOURCES = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
_BINARIES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


class Piece(NamedTuple):
    """A block of a page: its language or `setup`, the line above its code, its text, its title, what it shall print."""

    kind: str
    line: int
    code: str
    title: str
    expected: str


def pieces_of(text: str) -> list[Piece]:
    found = [*_PIECE.finditer(text)]
    return [_piece(text, match, after) for match, after in zip_longest(found, found[1:])]


def _piece(text: str, match: re.Match[str], after: re.Match[str] | None) -> Piece:
    kind = "setup" if match["setup"] is not None else match["kind"]
    part = "setup" if kind == "setup" else "code"
    title = re.search(r'title="([^"]+)"', match["rest"] or "")
    shows = after is not None and after["kind"] == "text" and not text[match.end() : after.start()].strip()
    expected = after["code"] if after is not None and shows else ""
    return Piece(kind, text.count("\n", 0, match.start(part)), match[part], title[1] if title else "", expected)


def commands_of(piece: Piece) -> list[str]:
    return [line for line in piece.code.splitlines() if line.strip() and not line.startswith("#")]


class Player:
    """Runs one page, in a folder of its own, on a device that plays `cuda`."""

    def __init__(self, page: Path, folder: Path, device: str, not_run: Collection[str] = ()) -> None:
        self.page, self.folder, self.device, self.not_run = page, folder, device, not_run
        self.namespace: dict[str, Any] = {"__name__": "page"}
        for name in ("examples", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        # The command is that of this checkout, installed or not.
        self.binaries = folder / ".binaries"
        self.binaries.mkdir()
        command = self.binaries / "torchmove"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torchmove "$@"\n')
        command.chmod(0o755)

    def play(self) -> None:
        try:
            self.play_all()
        finally:
            self.namespace.clear()  # a parked state would stay parked as long as somebody remembers the page

    def play_all(self) -> None:
        for piece in pieces_of(self.page.read_text()):
            if piece.kind in ("python", "setup"):
                printed = self.run_python(piece)
            elif piece.kind == "console":
                printed = self.run_commands(piece)
            else:
                continue
            if piece.kind != "setup":
                self.compare(piece, printed)

    def run_python(self, piece: Piece) -> str:
        """What it prints. Errors name the line of the page, or of the file that the block is."""
        name, lines_above = str(self.page), piece.line
        if piece.title:
            (self.folder / piece.title).write_text(piece.code)
            name, lines_above = str(self.folder / piece.title), 0
        if re.match(r"test_|conftest\b", piece.title):
            return ""
        code = re.sub(r"""(?<=["'])cuda(?=["':])""", self.device, piece.code)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile("\n" * lines_above + code, name, "exec"), self.namespace)
            except Exception as error:
                print(*traceback.format_exception_only(error))
                if not piece.expected:
                    raise
        return printed.getvalue().replace(self.device, "cuda")

    def run_commands(self, piece: Piece) -> str:
        printed = ""
        for line in commands_of(piece):
            command, _, comment = line.partition(" #")
            if command.strip() not in self.not_run:
                printed += self.run_command(command, comment)
        return printed

    def run_command(self, command: str, comment: str) -> str:
        path = os.pathsep.join([str(self.binaries), _BINARIES])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": _SOURCES, "NO_COLOR": "1"}
        ran = subprocess.run(
            command, shell=True, capture_output=True, text=True, check=False, cwd=self.folder, env=environment
        )
        status = re.search(r"exits with (\d+)", comment)
        assert ran.returncode == (int(status[1]) if status else 0), f"{command}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def compare(self, piece: Piece, printed: str) -> None:
        if not doctest.OutputChecker().check_output(piece.expected, printed, _COMPARE):
            where = f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name}:{piece.line}"
            raise AssertionError(f"{where} shows\n\n{piece.expected}\nand it printed\n\n{printed}")
