"""A JSON reader that reads one member at a time: skipped values are not kept, and duplicate keys are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchmove.checkpoints.source import Budget, Unfit, in_a_line

_BLANK = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[-+.\w]+")
_INNER = re.compile(r'["\[\]{}]')
_CLOSING = {"[": "]", "{": "}"}


class JsonText:
    """A JSON text and the position in it. `what` names it in a refusal."""

    def __init__(self, raw: bytes, what: str, budget: Budget) -> None:
        self._what, self._budget, self._at = what, budget, 0
        with self._checked():
            self._text = raw.decode("utf-8")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, RecursionError) as error:
            raise Unfit("R065", f"{self._what} is not valid JSON: {in_a_line(str(error), 80)}") from None

    def members(self) -> Iterator[str]:
        """Each key of the next object. The caller must read or skip its value before the next key."""
        keys: set[str] = set()
        self._take("{")
        more = self.next() != "}"
        while more:
            key = self.string()
            if key in keys:
                self._invalid("duplicate key")
            keys.add(key)
            self._take(":")
            yield key
            more = self.next() == ","
            if more:
                self._take(",")
        self._take("}")

    def next(self) -> str:
        """The first character of the next value; empty at the end."""
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at
        return self._text[self._at : self._at + 1]

    def string(self) -> str:
        self._take('"')
        with self._checked():
            found, end = json.decoder.scanstring(self._text, self._at)  # type: ignore[attr-defined]
        self._budget.spend(8 + ((end - self._at) >> 4))
        self._at = end
        return str(found)

    def flat(self, most: int) -> Any:
        """An object without nested objects and without "}" in its strings, of at most `most` characters; else None."""
        end = self._text.find("}", self._at, self._at + most) + 1 if self.next() == "{" else 0
        if not end:
            return None
        begin, self._at = self._at, end
        with self._checked():
            return _DECODER.decode(self._text[begin:end])

    def skip(self) -> str:
        """Skip the next value; returns its first characters."""
        first, begin, open_ones = self.next(), self._at, []
        if first in _CLOSING:
            self._at += 1
            open_ones.append(_CLOSING[first])
        elif first == '"':
            self.string()
        else:
            scalar = _SCALAR.match(self._text, self._at)
            self._at = scalar.end() if scalar else self._invalid("a value is missing")
        while open_ones:
            self._skip_one(open_ones)
        return self._text[begin : begin + 100]

    def _skip_one(self, open_ones: list[str]) -> None:
        found = _INNER.search(self._text, self._at)
        letter = found[0] if found else self._invalid("it is truncated")
        self._at = found.start() if found else self._at
        if letter == '"':
            self.string()
            return
        self._at += 1
        self._budget.spend(64)
        if letter in _CLOSING:
            open_ones.append(_CLOSING[letter])
        elif open_ones.pop() != letter:
            self._invalid("unbalanced brackets")

    def end(self) -> None:
        if self.next():
            self._invalid("something follows it")

    def _take(self, letter: str) -> None:
        if self.next() != letter:
            self._invalid(f"{letter!r} is missing at {self._at}")
        self._at += 1

    def _invalid(self, why: str) -> Any:
        with self._checked():
            raise ValueError(why)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
