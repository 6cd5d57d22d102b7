"""Old storages: free large ones on the host in the background, and report what keeps others alive.

The kernel takes longer to reclaim gigabytes of small pages than a move takes to copy them, so a move does not wait for
that; the next move does, since it counts free memory.
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
from torchmove.internals.guards import HeldInterrupts, everything_of, plain_torch
from torchmove.internals.host_memory import drop_pages
from torchmove.internals.storages import AT_ONCE, Watch, held_elsewhere, is_sole_owner, storage_key
from torchmove.moving.receipt import Held
from torchmove.planning.plan import Plan
from torchmove.surveying.paths import Path

_LARGE_BYTES = 1 << 20  # of a storage
_BACKGROUND_BYTES = 256 << 20  # of all of them

_thread: threading.Thread | None = None


def large_host_storages(storages: Sequence[UntypedStorage], sizes: Sequence[int]) -> list[UntypedStorage]:
    """The storages large enough to be freed in the background."""
    of_size = compress(storages, map(_LARGE_BYTES.__le__, sizes))
    return [each for each in of_size if each.device.type == "cpu" and each.resizable()]


def free_in_background(large: list[UntypedStorage]) -> None:
    """Free storages that the state no longer uses. Errors are ignored, since the move has succeeded."""
    global _thread
    if sum(storage.nbytes() for storage in large) < _BACKGROUND_BYTES:
        large.clear()
        return
    wait_for_freeing()
    # Not a daemon: at exit Python stops daemon threads anywhere, and inside torch that aborts the process. After Python
    # has joined its threads at exit, a new one would not be joined: then the storages are freed here.
    thread = threading.Thread(target=_empty, args=(large,), name="torchmove freeing", daemon=False)
    if threading.main_thread().is_alive() and _started(thread):
        _thread = thread
    else:
        large.clear()


def _started(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # the system allows no more threads
        return False
    return True


def wait_for_freeing() -> None:
    """Wait until the background thread has freed its storages."""
    # A finalizer that runs in that thread may move a state.
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join()


@plain_torch
def _empty(storages: list[UntypedStorage]) -> None:
    while storages:
        view = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storages.pop())
        # munmap blocks other threads from mapping memory while it reclaims pages: so the pages are dropped first.
        if is_sole_owner(view) and not view.is_pinned():
            drop_pages(view)
        view.set_()  # type: ignore[call-overload]  # frees the storage without the GIL, unlike deleting the object


class OldStorages:
    """The storages that a plan moves away from."""

    def __init__(self, plan: Plan) -> None:
        self._tensors = plan.inventory.tensors
        self._firsts: list[int] = []
        self._storages: list[UntypedStorage] = []
        self._watched: dict[int, Watch] = {}  # by the index of a tensor

    def record(self, firsts: Sequence[int], tensors: Sequence[Tensor]) -> list[UntypedStorage]:
        """Record the storages of tensors that are about to be rebound; each is the first tensor on its storage."""
        storages = list(map(Tensor.untyped_storage, tensors))
        self._storages += storages
        self._firsts += firsts
        return storages

    def release(self) -> None:
        """Release the storages, and watch those that something else keeps alive. AT_ONCE at a time, which stay in the
        CPU's cache."""
        large: list[UntypedStorage] = []
        sizes = [self._tensors.metadata.storage_bytes[first] for first in self._firsts]
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
        """Stop tracking them: the tensors are on them again."""
        self._storages.clear()

    def held(self, seconds: float) -> Leftover:
        """What is still alive and what holds it; the search may take a small share of the move's `seconds`."""
        alive = [each for each in self._left() if each.watch.alive()]
        if alive:
            wait_for_freeing()
        budget = _Budget(max(_LEAST_SECONDS, seconds / _SHARE) * _OBJECTS_PER_SECOND)
        if sum(each.nbytes for each in alive) < _WORTH_BYTES:
            budget.left = 0
        return Leftover(alive, budget)

    def forget(self) -> None:
        """Stop watching. Interrupts are held: a Ctrl-C in a finalizer of a watch would be lost."""
        with HeldInterrupts() as interrupts, interrupts:
            self._watched.clear()

    def _left(self) -> Iterator[_Left]:
        for first, watch in sorted(self._watched.items()):
            entry = self._tensors[first]
            if entry.storage_bytes:
                yield _Left(entry.path, entry.storage_bytes, watch)


class _Left(NamedTuple):
    """An old storage, and the path of its first tensor."""

    path: Path
    nbytes: int
    watch: Watch


class Leftover:
    """Old storages that were not freed. Keeps none of them alive."""

    def __init__(self, left: Sequence[_Left] = (), budget: _Budget | None = None) -> None:
        self._left = left
        self.held = self._searched(budget) if budget is not None else ()

    def find_holders(self) -> tuple[Held, ...]:
        """Search without a time limit."""
        return self._searched(_Budget(math.inf))

    def __reduce__(self) -> tuple[type[Leftover], tuple[()]]:
        return Leftover, ()  # storages of this process mean nothing in another

    def _searched(self, budget: _Budget) -> tuple[Held, ...]:
        alive = [each for each in self._left if each.watch.alive()]
        if alive and budget.has(_COLLECTING):
            gc.collect()  # an unreachable cycle is not a holder
            alive = [each for each in alive if each.watch.alive()]
        holders: dict[int, list[str]] = {}
        unknown = _UNSEEN
        with suppress(Exception):  # the move has succeeded; the holders are only information
            if alive and budget.has(1):
                holders = _holders({each.watch.storage for each in alive}, budget)
            elif alive:
                unknown = _UNSEARCHED
        return tuple(
            Held(each.path, each.nbytes, listed(holders.get(each.watch.storage, ()), "; ") or unknown) for each in alive
        )


_UNSEEN = "something that Python's gc does not track"
_UNSEARCHED = "not searched for; receipt.find_holders() searches"


# ---------------------------------------------------------------- the search for holders

_WORTH_BYTES = 1 << 20  # holders of less are not searched for
_LEAST_SECONDS = 0.05  # a search may always take this long
_SHARE = 10  # and one part in so many of the move's time
_OBJECTS_PER_SECOND = 40e6
_COLLECTING = 6  # a full collection takes as long as this many searches


class _Budget:
    """How many objects a search may visit. Each search visits all objects of the process, or is not made."""

    def __init__(self, objects: float) -> None:
        self.left = objects

    def has(self, searches: int) -> bool:
        """Whether so many searches are affordable; if so, they are paid for."""
        # The gc does not count its objects; Python counts its allocations, which are more.
        objects = searches * sys.getallocatedblocks()
        if objects > self.left:
            return False
        self.left -= objects
        return True


def _holders(storages: set[int], budget: _Budget) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    those = _users_of(storages)
    keys, names = [*map(storage_key, those)], [*map(_name, those)]
    # A few storages are enough. One search finds the referrers of all of them; `those` is the only list of ours that
    # refers to them.
    most = {*list(dict.fromkeys(keys))[:_MOST_SEARCHED]}
    those[:] = [each for each, key in zip(those, keys, strict=True) if key in most]
    ids = [*map(id, those)]
    places = iter(map(_places(those, budget).__getitem__, ids) if budget.has(1) else repeat([""]))
    for key, name in zip(keys, names, strict=True):
        if key is not None:
            found[key] += [f"{name}{place}" for place in (next(places) if key in most else [""])]
    return found


def _users_of(storages: set[int]) -> list[Any]:
    """All tensors on some storages. A storage object counts as a user only if no tensor is on it, since tensors keep
    it alive themselves."""
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
    """Descriptions of the referrers of some objects, by the objects' ids. Runs no code of the referrers."""
    wanted = {*map(id, some)}
    found: dict[int, list[str]] = {me: [] for me in wanted}
    asked = tuple(some)  # Python 3.13 names the tuple of its arguments among the referrers
    holders = [each for each in gc.get_referrers(*asked) if each is not some and each is not asked]
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
        else:
            for key, value in _attributes(holder):
                if id(value) in wanted:
                    found[id(value)].append(f" under {key!r} in a {type(holder).__name__}")
    return {me: places or [" in a local variable or a graph"] for me, places in found.items()}


def _attributes(holder: Any) -> list[tuple[str, Any]]:
    """From Python 3.11 on objects hold their attributes themselves, without a dict that could be found."""
    with suppress(Exception):
        return list(dict.items(object.__getattribute__(holder, "__dict__")))
    return []


def _owners(dicts: list[dict[Any, Any]], budget: _Budget) -> dict[int, str]:
    """The owners of those dicts that are the `__dict__` of an object or a module."""
    found: dict[int, str] = {}
    mine = {id(each) for each in dicts if type(each) is dict}
    for owner in gc.get_referrers(*dicts) if mine and budget.has(1) else ():
        if isinstance(owner, types.ModuleType):
            found[id(vars(owner))] = f"module {owner.__name__}"
            continue
        with suppress(Exception):  # a class may define its own __dict__
            stored = object.__getattribute__(owner, "__dict__")
            if id(stored) in mine:
                found[id(stored)] = f"a {type(owner).__name__}"
    return found
