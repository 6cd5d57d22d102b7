"""Old memory that did not come free: which storages something outside the state still looks at, and who that is."""

from __future__ import annotations

import gc
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import compress, count
from typing import Any

from torch import Tensor, UntypedStorage
from torch.nn.parameter import is_lazy

from torchmove import _freeing
from torchmove._everything import everything_of
from torchmove._interrupts import HeldInterrupts
from torchmove._paths import Path
from torchmove._records import Held, Plan
from torchmove._storage import AT_ONCE, Watch, held_elsewhere, storage_key
from torchmove.report import listed


class OldStorages:
    """The storages that a plan moves away from."""

    def __init__(self, plan: Plan) -> None:
        self._slots = plan.inventory.slots
        self._firsts: list[int] = []
        self._storages: list[UntypedStorage] = []
        self._watched: dict[int, Watch] = {}  # by the slot

    def look_at(self, firsts: Sequence[int], tensors: Sequence[Tensor]) -> list[UntypedStorage]:
        """What some tensors look at that will look elsewhere in a moment; each is in the first slot of its block."""
        storages = list(map(Tensor.untyped_storage, tensors))
        self._storages += storages
        self._firsts += firsts
        return storages

    def let_go(self) -> None:
        """Nothing of ours looks at them any more. Who else does is told later; a part at a time, since what has just
        been looked at is let go of more quickly."""
        large: list[UntypedStorage] = []
        sizes = [self._slots.looks.storage_bytes[first] for first in self._firsts]
        while self._storages:
            some = self._storages[-AT_ONCE:]
            del self._storages[-AT_ONCE:]
            start = len(self._storages)
            for at in compress(count(), held_elsewhere(some)):
                self._watched[self._firsts[start + at]] = Watch(some[at])
            large += _freeing.large(some, sizes[start : start + len(some)])
            some.clear()
        _freeing.let_go(large)

    def keep(self) -> None:
        """The tensors look at them again."""
        self._storages.clear()

    def held(self) -> tuple[Held, ...]:
        alive = self._alive()
        if alive:
            _freeing.wait()
            gc.collect()  # a cycle that nobody holds is not somebody
            alive = self._alive()
        holders: dict[int, list[str]] = {}
        with suppress(Exception):  # the state is where it should be; who else holds what is a help, no more
            holders = _holders({watch.storage for _, _, watch in alive}) if alive else {}
        return tuple(
            Held(path, size, listed(holders.get(watch.storage, ()), "; ") or "something that Python cannot see")
            for path, size, watch in alive
        )

    def forget(self) -> None:
        """Watch no longer. In the end of a watch, which Python runs by itself, a Ctrl-C would be dropped."""
        with HeldInterrupts() as interrupts, interrupts:
            self._watched.clear()

    def _alive(self) -> list[tuple[Path, int, Watch]]:
        alive = ((self._slots[first], watch) for first, watch in sorted(self._watched.items()) if watch.alive())
        return [(slot.path, slot.storage_bytes, watch) for slot, watch in alive if slot.storage_bytes]


def _holders(storages: set[int]) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    for kind in (Tensor, UntypedStorage):
        # Python keeps the object of a storage for the tensors' sake: it is somebody only where no tensor is.
        searched = storages - found.keys()
        everything: list[Any] = everything_of(kind)
        for each in everything:
            key = storage_key(each)
            if key in searched:
                # Who holds it is a search through all memory; a few of them tell enough.
                places = _places(each, everything) if len(found) < _MOST_SEARCHED else [""]
                found[key] += [f"{_name(each)}{place}" for place in places]
    return found


_MOST_SEARCHED = 3


def _name(each: Any) -> str:
    if not isinstance(each, Tensor):
        return "a storage"
    return "a tensor" if is_lazy(each) or each.is_nested else f"a tensor of shape {tuple(each.shape)}"


def _places(each: Any, besides: list[Any]) -> Iterator[str]:
    """In words. Reads what is stored, and runs no code of those who store it."""
    known = False
    for holder in gc.get_referrers(each):
        if isinstance(holder, dict):
            keys = [key for key, value in dict.items(holder) if value is each and type(key) in (str, int)]
            yield from (f" under {key!r} in {_owner(holder)}" for key in keys)
            known = known or bool(keys)
        elif isinstance(holder, (list, tuple)) and holder is not besides:
            yield f" in {type(holder).__name__} of {len(holder)}"
            known = True
    if not known:
        yield " in a local variable or a graph"


def _owner(holder: dict[Any, Any]) -> str:
    """Whose `__dict__` it is, if it is one."""
    for owner in gc.get_referrers(holder):
        if isinstance(owner, types.ModuleType):
            return f"module {owner.__name__}"
        with suppress(Exception):  # a class may have its own idea of a __dict__
            if object.__getattribute__(owner, "__dict__") is holder:
                return f"a {type(owner).__name__}"
    return f"{type(holder).__name__} of {len(holder)}"
