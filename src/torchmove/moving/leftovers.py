"""Large old copies in host memory, given back in the background.

The kernel takes longer to take gigabytes of small pages back than the link takes to carry them. The state does not need
them any more, so nobody has to wait; except for the next move, which counts what is free.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import compress, count, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage
from torch.nn.parameter import is_lazy

from torchmove.formatting import listed
from torchmove.internals.collector import everything_of
from torchmove.internals.host_memory import drop_pages
from torchmove.internals.interrupts import HeldInterrupts
from torchmove.internals.metadata import AT_ONCE
from torchmove.internals.modes import plain_torch
from torchmove.internals.storages import Watch, held_elsewhere, is_sole_owner, storage_key
from torchmove.moving.receipt import Held
from torchmove.planning.plan import Plan
from torchmove.surveying.paths import Path

_LARGE_BYTES = 1 << 20  # of a storage
_BACKGROUND_BYTES = 256 << 20  # of all of them

_thread: threading.Thread | None = None


def large_host_storages(storages: Sequence[UntypedStorage], sizes: Sequence[int]) -> list[UntypedStorage]:
    """Those of which it may matter when they are given back."""
    of_size = compress(storages, map(_LARGE_BYTES.__le__, sizes))
    return [each for each in of_size if each.device.type == "cpu" and each.resizable()]


def free_in_background(large: list[UntypedStorage]) -> None:
    """Give back storages that nobody else needs. Whatever happens, nobody is told: the state is where it should be."""
    global _thread
    if sum(storage.nbytes() for storage in large) < _BACKGROUND_BYTES:
        large.clear()
        return
    wait_for_freeing()
    # No daemon: at exit Python ends one wherever it is, and in the midst of torch that aborts the process. Once Python
    # has waited for its threads, nobody waits for a new one.
    thread = threading.Thread(target=_empty, args=(large,), name="torchmove freeing", daemon=False)
    if threading.main_thread().is_alive() and _started(thread):
        _thread = thread
    else:
        large.clear()


def _started(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # as many as the system allows
        return False
    return True


def wait_for_freeing() -> None:
    """Until all that was let go has been given back."""
    # The collector may run somebody's code, which moves, in that thread.
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join()


@plain_torch
def _empty(storages: list[UntypedStorage]) -> None:
    while storages:
        window = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storages.pop())
        # To unmap memory keeps others from mapping any while its pages are given back: so those first, alone.
        if is_sole_owner(window) and not window.is_pinned():
            drop_pages(window)
        window.set_()  # type: ignore[call-overload]  # without Python's lock, unlike letting go of the object


class OldStorages:
    """The storages that a plan moves away from."""

    def __init__(self, plan: Plan) -> None:
        self._slots = plan.inventory.tensors
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
        sizes = [self._slots.metadata.storage_bytes[first] for first in self._firsts]
        while self._storages:
            some = self._storages[-AT_ONCE:]
            del self._storages[-AT_ONCE:]
            start = len(self._storages)
            for at in compress(count(), held_elsewhere(some)):
                self._watched[self._firsts[start + at]] = Watch(some[at])
            large += large_host_storages(some, sizes[start : start + len(some)])
            some.clear()
        free_in_background(large)

    def keep(self) -> None:
        """The tensors look at them again."""
        self._storages.clear()

    def held(self, seconds: float) -> Leftover:
        """What is still alive, and who holds it: so far as the search for that takes no large part of a move that took
        some seconds."""
        alive = [each for each in self._left() if each.watch.alive()]
        if alive:
            wait_for_freeing()
        budget = _Budget(max(_LEAST_SECONDS, seconds / _SHARE) * _LOOKS_PER_SECOND)
        if sum(each.nbytes for each in alive) < _WORTH_BYTES:
            budget.left = 0
        return Leftover(alive, budget)

    def forget(self) -> None:
        """Watch no longer. In the end of a watch, which Python runs by itself, a Ctrl-C would be dropped."""
        with HeldInterrupts() as interrupts, interrupts:
            self._watched.clear()

    def _left(self) -> Iterator[_Left]:
        for first, watch in sorted(self._watched.items()):
            entry = self._slots[first]
            if entry.storage_bytes:
                yield _Left(entry.path, entry.storage_bytes, watch)


class _Left(NamedTuple):
    """An old storage, and the first tensor that looked at it."""

    path: Path
    nbytes: int
    watch: Watch


class Leftover:
    """Old storages that did not come free. Keeps none of them alive."""

    def __init__(self, left: Sequence[_Left] = (), budget: _Budget | None = None) -> None:
        self._left = left
        self.held = self._searched(budget) if budget is not None else ()

    def find_holders(self) -> tuple[Held, ...]:
        """Whatever that takes."""
        return self._searched(_Budget(math.inf))

    def __reduce__(self) -> tuple[type[Leftover], tuple[()]]:
        return Leftover, ()  # of this process alone

    def _searched(self, budget: _Budget) -> tuple[Held, ...]:
        alive = [each for each in self._left if each.watch.alive()]
        if alive and budget.has(_COLLECTING):
            gc.collect()  # a cycle that nobody holds is not somebody
            alive = [each for each in alive if each.watch.alive()]
        holders: dict[int, list[str]] = {}
        unknown = _UNSEEN
        with suppress(Exception):  # the state is where it should be; who else holds what is a help, no more
            if alive and budget.has(1):
                holders = _holders({each.watch.storage for each in alive}, budget)
            elif alive:
                unknown = _UNSEARCHED
        return tuple(
            Held(each.path, each.nbytes, listed(holders.get(each.watch.storage, ()), "; ") or unknown) for each in alive
        )


_UNSEEN = "something that Python cannot see"
_UNSEARCHED = "not searched for, receipt.find_holders() does that"


# ---------------------------------------------------------------- who it is

_WORTH_BYTES = 1 << 20  # less is counted, and nobody looks for its holder
_LEAST_SECONDS = 0.05  # that a search may always take
_SHARE = 10  # one part in so many of the move's time
_LOOKS_PER_SECOND = 40e6
_COLLECTING = 6  # a collection of everything takes as long as so many searches


class _Budget:
    """How many objects may be looked at. Each search looks at all that the process has, and is done or not."""

    def __init__(self, metadata: float) -> None:
        self.left = metadata

    def has(self, searches: int) -> bool:
        """If there is enough for them, it is spent."""
        # Python's own count, of more than the collector knows. It has none of that.
        metadata = searches * sys.getallocatedblocks()
        if metadata > self.left:
            return False
        self.left -= metadata
        return True


def _holders(storages: set[int], budget: _Budget) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    those = _looking_at(storages)
    keys, names = [*map(storage_key, those)], [*map(_name, those)]
    # A few of them tell enough. One search finds who holds any of these, and meets no list of ours but this.
    most = {*list(dict.fromkeys(keys))[:_MOST_SEARCHED]}
    those[:] = [each for each, key in zip(those, keys, strict=True) if key in most]
    ids = [*map(id, those)]
    places = iter(map(_places(those, budget).__getitem__, ids) if budget.has(1) else repeat([""]))
    for key, name in zip(keys, names, strict=True):
        if key is not None:
            found[key] += [f"{name}{place}" for place in (next(places) if key in most else [""])]
    return found


def _looking_at(storages: set[int]) -> list[Any]:
    """All that look at some storages. Python keeps the object of a storage for the tensors' sake: it is somebody only
    where no tensor is."""
    everything: list[Any] = everything_of(Tensor, UntypedStorage)
    found = [each for each in everything if storage_key(each) in storages]
    seen = {storage_key(each) for each in found if not _is_storage(each)}
    return [each for each in found if not _is_storage(each) or storage_key(each) not in seen]


_MOST_SEARCHED = 3


def _is_storage(each: Any) -> bool:
    return not issubclass(type(each), Tensor)


def _name(each: Any) -> str:
    if not isinstance(each, Tensor):
        return "a storage"
    return "a tensor" if is_lazy(each) or each.is_nested else f"a tensor of shape {tuple(each.shape)}"


def _places(some: list[Any], budget: _Budget) -> dict[int, list[str]]:
    """In words, by the id of what is held. Reads what is stored, and runs no code of those who store it."""
    wanted = {*map(id, some)}
    found: dict[int, list[str]] = {me: [] for me in wanted}
    holders = [each for each in gc.get_referrers(*some) if each is not some]
    dicts = [each for each in holders if isinstance(each, dict)]
    owners = _owners(dicts, budget)
    for holder in holders:
        if isinstance(holder, dict):
            for key, value in dict.items(holder):
                if id(value) in wanted and type(key) in (str, int):
                    owner = owners.get(id(holder), f"{type(holder).__name__} of {len(holder)}")
                    found[id(value)].append(f" under {key!r} in {owner}")
        elif isinstance(holder, (list, tuple)):
            for me in wanted.intersection(map(id, holder)):
                found[me].append(f" in {type(holder).__name__} of {len(holder)}")
    return {me: places or [" in a local variable or a graph"] for me, places in found.items()}


def _owners(dicts: list[dict[Any, Any]], budget: _Budget) -> dict[int, str]:
    """Whose `__dict__` some dicts are, those that are one."""
    found: dict[int, str] = {}
    mine = {id(each) for each in dicts if type(each) is dict}
    for owner in gc.get_referrers(*dicts) if mine and budget.has(1) else ():
        if isinstance(owner, types.ModuleType):
            found[id(vars(owner))] = f"module {owner.__name__}"
            continue
        with suppress(Exception):  # a class may have its own idea of a __dict__
            stored = object.__getattribute__(owner, "__dict__")
            if id(stored) in mine:
                found[id(stored)] = f"a {type(owner).__name__}"
    return found
