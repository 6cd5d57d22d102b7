"""Finds the source text of the call that a frame is executing."""

from __future__ import annotations

import ast
import linecache
import sys
from itertools import islice
from types import CodeType, FrameType
from typing import NamedTuple


class Running(NamedTuple):
    """A call instruction; distinguishes several calls on one line."""

    code: CodeType
    instruction: int

    @classmethod
    def of(cls, frame: FrameType | None) -> Running | None:
        return None if frame is None else cls(frame.f_code, frame.f_lasti)

    def written(self) -> tuple[ast.Call | None, str]:
        """The expression and its text; None and an empty string if the file or the position is unknown."""
        text = "".join(linecache.getlines(self.code.co_filename))
        end = self._end()
        try:
            nodes = [*ast.walk(ast.parse(text))] if end is not None else []
        except (SyntaxError, ValueError):
            return None, ""
        calls = [each for each in nodes if isinstance(each, ast.Call) and (each.end_lineno, each.end_col_offset) == end]
        if not calls:
            return None, ""
        written = ast.get_source_segment(text, calls[0]) or ""
        return calls[0], ast.unparse(calls[0]) if "\n" in written else written

    def _end(self) -> tuple[int | None, int | None] | None:
        if sys.version_info < (3, 11):
            return None
        positions = next(islice(self.code.co_positions(), self.instruction // 2, None), None)
        return None if positions is None else (positions[1], positions[3])
