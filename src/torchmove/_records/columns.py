"""Rows on demand: a sequence that is kept in columns, and puts a row together when somebody asks for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

Row = TypeVar("Row")


class Rows(Sequence[Row]):
    """Says how many there are (`__len__`) and what one is (`row`)."""

    def row(self, index: int) -> Row:
        raise NotImplementedError

    def rows(self, some: range) -> list[Row]:
        return [self.row(index) for index in some]

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return self.rows(range(*index.indices(len(self))))
        return self.row(index)
