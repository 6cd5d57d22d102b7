"""The tensors that a walk has found, each once, and where."""

from __future__ import annotations

from itertools import count
from typing import Any

from torch import Tensor

from torchmove._paths import Path
from torchmove._records import Also, Bunch, Origins, Owner, Role, Run, make_several
from torchmove._shells import PLAIN


class Finds:
    """So far. The rest of a walk adds to them, one at a time or many."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # every one, in the order in which they were found
        self.origins = Origins()
        self.seen: dict[int, int] = {}  # which of them it is, by its id
        self.also: list[Also] = []

    def find(self, tensor: Tensor, before: Path | None, how: str, what: Any, role: Role, owner: Owner | None) -> None:
        me = id(tensor)
        if me in self.seen:
            self.also.append(Also((me,), before, how, (what,)))
        else:
            self.seen[me] = len(self.tensors)
            self.tensors.append(tensor)
            self.origins.add(make_several((before, how, (what,), role, owner)), 1)

    def all_new(self, values: list[Tensor], run: Run) -> bool:
        """If these are tensors that were not found yet, they are now."""
        ids = list(map(id, values))
        if not set(map(type, values)) <= PLAIN or len({*ids}) < len(ids) or not self.seen.keys().isdisjoint(ids):
            return False
        self.seen.update(zip(ids, count(len(self.tensors))))
        self.tensors += values
        self.origins.add(run, len(values))
        return True

    def all_known(self, bunch: Bunch, before: Path) -> bool:
        """If these are tensors that were all found before, they are noted; such are the parameters of an optimizer."""
        ids = list(map(id, bunch.entries.values()))
        if not all(map(self.seen.__contains__, ids)):
            return False
        self.also.append(Also(ids, before, bunch.how, list(bunch.entries)))
        return True
