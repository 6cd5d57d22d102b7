"""Keys of dicts and members of sets, from a file that may have chosen them so that all of them collide.

Python salts the hashes of texts and bytes, and of nothing else. Numbers and tuples can be chosen so that each new key
is compared with all before it, and a dict of 100 000 takes hours. A key alone does not show that. So the steps of
Python's own hash table are taken once more, with a mark for each place that is taken, and each step is paid for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torchmove.checkpoints.budget import Budget
from torchmove.checkpoints.refusing import Unfit

_MOST_IN_A_KEY = 1000
_DEEPEST_KEY = 20
_SALTED = (str, bytes)
_BESIDE = 9  # so many places after the first one a set tries before it leaps
_SMALLEST = 8


class Keys:
    """Puts keys into dicts, and pays for what that takes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._tables: dict[int, tuple[dict[Any, Any], _Table]] = {}  # of dicts with keys that may collide, by id

    def put(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        key, weight = self._hashable(key)
        if self._tables or not _is_harmless(key, len(target)):
            self._pay(target, key, weight)
        target[key] = value

    def fill(self, target: dict[Any, Any], pairs: Iterable[Any]) -> None:
        for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
            self._budget.spend(4)
            self.put(target, key, value)

    def check_members(self, members: Collection[Any]) -> None:
        """Of a set, which is a list here, and becomes a set where torch loads it."""
        table = _Table(self._budget, _BESIDE)
        for member in members:
            key, weight = self._hashable(member)
            if type(key) not in _SALTED:
                table.place(hash(key), weight)

    def remember(self, memo: dict[int, Any], index: int, value: Any) -> None:
        """The memo of a pickle is a dict as well."""
        if index == len(memo) and not self._tables:  # nearly always
            memo[index] = value
        else:
            self.put(memo, index, value)

    def _hashable(self, key: Any) -> tuple[Any, int]:
        """A key whose hash is quick to have, and its weight: tuples of tuples that are all the same one have none."""
        if isinstance(key, str):
            key = str(key)
        weight = 1 if type(key) is int else _weight(key)
        self._budget.spend(weight)
        return key, weight

    def _pay(self, target: dict[Any, Any], key: Any, weight: int) -> None:
        """Before it is put there: a table that grows places all of its keys anew."""
        known = self._tables.get(id(target))
        if known is None:
            if _is_harmless(key, len(target)):
                return
            known = self._tables[id(target)] = target, _Table(self._budget)
            for each in target:
                known[1].place(hash(each))
        if key in target:
            known[1].find(hash(key), weight)
        else:
            known[1].place(hash(key), weight)


def _is_harmless(key: Any, count: int) -> bool:
    """Can it not be chosen to collide? Its hash is salted; or it is a small whole number, and that itself is its place,
    since the table is larger: so among keys that are all like this, none is in the way of another."""
    return type(key) in _SALTED or (type(key) is int and 0 <= key < max(_SMALLEST, count + count // 2))


def _weight(key: Any) -> int:
    waiting, weight = [(key, 0)], 0
    while waiting:
        each, depth = waiting.pop()
        weight += 1 + (len(each) // 16 if isinstance(each, _SALTED) else 0)
        if weight > _MOST_IN_A_KEY or depth > _DEEPEST_KEY:
            raise Unfit("R067", "a key in its pickle is too large for one")
        if isinstance(each, tuple):
            waiting += ((inner, depth + 1) for inner in each[: _MOST_IN_A_KEY + 1])
        elif isinstance(each, (list, dict)):
            raise Unfit("R065", "its pickle has a list or dict for a key")
    return weight


class _Table:
    """Which places of a hash table of Python's are taken: of a dict, or with `beside`, of a set."""

    def __init__(self, budget: Budget, beside: int = 0) -> None:
        self._budget, self._beside = budget, beside
        self._hashes: list[int] = []
        self._taken = bytearray(_SMALLEST)

    def place(self, hashed: int, weight: int = 1) -> None:
        """Take a place for a key. In a larger table, where this one is too full."""
        self._budget.spend(6)
        self._hashes.append(hashed)
        if 3 * len(self._hashes) > 2 * len(self._taken):
            self._taken = bytearray((4 if self._beside else 2) * len(self._taken))
            for before in self._hashes[:-1]:
                self._taken[self.find(before)] = 1
        self._taken[self.find(hashed, weight)] = 1

    def find(self, hashed: int, weight: int = 1) -> int:
        """The first place that is free. Each that is not costs, and more where keys as large as this are compared."""
        taken, most, cost = self._taken, len(self._taken) - 1, 1 + weight // 16
        at, perturb = hashed & most, hashed & 0xFFFF_FFFF_FFFF_FFFF
        while True:
            for place in range(at, at + 1 + (self._beside if at + self._beside <= most else 0)):
                if not taken[place]:
                    return place
                self._budget.spend(cost)
            perturb >>= 5
            at = (at * 5 + perturb + 1) & most
