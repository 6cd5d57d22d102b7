"""Copies through page-locked slots, by threads and a copy engine that work at the same time.

Large storages are copied in pieces of a slot. Small ones are copied in bundles: many in one slot, over the link
together, then each into a storage of its own. For small tensors the time goes into Python, not into the link, so a
bundle takes a few calls that release Python's lock, and several bundles are in flight at once. Tensors of one shape are
gathered and split by one call each.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchmove.internals.guards import HeldInterrupts, plain_torch
from torchmove.internals.storages import copy_alone, empty_like_each, filled, is_shared_out, rows_apart
from torchmove.moving.movers.copies import Advance

Task = Callable[[], None]
Done = SimpleQueue[tuple[int, BaseException | None]]


def cores() -> int:
    """Number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of threads. Each finished task is reported to its queue, by its ticket, with its error or None."""

    def __init__(self, count: int) -> None:
        self._todo: SimpleQueue[tuple[Task, int, Done] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True, name="torchmove") for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._threads)

    def give(self, task: Task, ticket: int, done: Done) -> None:
        self._todo.put((task, ticket, done))

    def stop(self) -> None:
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    @plain_torch
    def _work(self) -> None:
        while (entry := self._todo.get()) is not None:
            task, ticket, done = entry
            error = _error_of(task)
            # Before it is reported: a thread that waits for it may rely on this one holding none of its tensors.
            del entry, task
            done.put((ticket, error))
            del error, done


def _error_of(task: Task) -> BaseException | None:
    try:
        task()
    except BaseException as error:
        return error
    return None


Item = TypeVar("Item")


class RingSlot(NamedTuple):
    """A page-locked buffer, and the event of the last copy through it."""

    bytes: Tensor
    event: torch.cuda.Event


class Cancelled(Exception):
    """The caller was interrupted and no longer waits for the copies."""


class Channel(NamedTuple):
    """What copies use: slots, worker threads, a stream, and the progress callback."""

    slots: Sequence[Tensor]
    workers: Workers
    stream: torch.cuda.Stream
    advance: Advance


class Traffic(Generic[Item]):
    """Items (pieces or bundles) being copied in one direction."""

    def __init__(self, channel: Channel) -> None:
        slots, self.workers, self.stream, self.advance = channel
        self.free = [RingSlot(part, torch.cuda.Event()) for part in slots]  # type: ignore[no-untyped-call]
        # Items the caller is asked to prepare, and items it has handed over. None ends each queue.
        self.asked: SimpleQueue[Item | None] = SimpleQueue()
        self.handed: SimpleQueue[Item | None] = SimpleQueue()
        self.at_work: dict[int, tuple[Item, RingSlot]] = {}  # given to the workers, by ticket
        self.done: Done = SimpleQueue()
        self.cancelled = False

    def give(self, task: Task, item: Item, slot: RingSlot) -> None:
        ticket = id(slot)
        self.at_work[ticket] = (item, slot)
        self.workers.give(task, ticket, self.done)

    def take(self) -> tuple[Item, RingSlot]:
        ticket, error = self.done.get()
        taken = self.at_work.pop(ticket)
        if error is not None:
            raise error
        return taken

    def settle(self) -> None:
        """Wait until no thread and no copy uses a slot, even after an error."""
        while self.at_work:
            self.at_work.pop(self.done.get()[0])
        self.stream.synchronize()

    def run(self, work: Callable[[], None], items: Iterable[Item] = ()) -> None:
        """Run in a separate thread: a Ctrl-C interrupts the caller, which hands over items, and not the copies."""
        errors: list[BaseException] = []
        running = threading.Lock()
        running.acquire()
        job = (work, self, errors, running)
        thread = threading.Thread(target=_work, args=job, name="torchmove traffic", daemon=True)
        handing = _HandingOver(self.handed)
        try:
            with HeldInterrupts() as interrupts, interrupts:
                thread.start()
            for item in items:
                handing.put(item)
                if not running.locked():
                    break  # the thread has failed
            handing.put(None)
            running.acquire()
        except BaseException:
            self.cancelled = True
            raise
        finally:
            # Before Python 3.13, join() after an interrupted join() returns at once.
            with HeldInterrupts() as interrupts, interrupts:
                handing.put(None)
                if thread.ident is not None:
                    thread.join()
                del thread  # runs a finalizer, in which a Ctrl-C would be lost
                if self.cancelled:
                    errors.clear()  # breaks a cycle: an error keeps its frames, and they keep this list
        if errors:
            raise errors.pop()


class _HandingOver:
    """The caller's end of a queue. Puts the final None when it is deleted, since repeated Ctrl-C may skip any line."""

    def __init__(self, queue: SimpleQueue[Any]) -> None:
        self.put = queue.put

    def __del__(self) -> None:
        self.put(None)


# Not a closure: an error keeps its frames, and they would keep the closed-over variables.
def _work(
    work: Callable[[], None], traffic: Traffic[Item], errors: list[BaseException], running: threading.Lock
) -> None:
    try:
        _drive(work, traffic)
    except BaseException as error:
        errors.append(error)
    finally:
        traffic.asked.put(None)  # the caller may be waiting on this queue
        running.release()


@plain_torch
def _drive(work: Callable[[], None], traffic: Traffic[Item]) -> None:
    with torch.cuda.device(traffic.stream.device), torch.cuda.stream(traffic.stream):
        try:
            work()
        finally:
            traffic.settle()


class Piece(NamedTuple):
    """Bytes at an address in host memory, and the same bytes on the device. `owner` keeps the address valid."""

    owner: Tensor
    address: int
    device: Tensor
    nbytes: int

    def host_to_slot(self, slot: Tensor) -> None:
        ctypes.memmove(slot.data_ptr(), self.address, self.nbytes)

    def slot_to_device(self, slot: Tensor) -> None:
        self.device.copy_(slot if slot.nbytes == self.nbytes else slot[: self.nbytes], non_blocking=True)

    def device_to_slot(self, slot: Tensor) -> None:
        (slot if slot.nbytes == self.nbytes else slot[: self.nbytes]).copy_(self.device, non_blocking=True)

    def slot_to_host(self, slot: Tensor) -> None:
        ctypes.memmove(self.address, slot.data_ptr(), self.nbytes)


class Pieces(Traffic[Piece]):
    """Pieces being copied: workers copy between slots and host memory, CUDA between slots and the device."""

    def __init__(self, channel: Channel, pieces: Iterable[Piece]) -> None:
        super().__init__(channel)
        self.pieces = iter(pieces)
        self.most_on_link = max(1, len(self.free) - len(self.workers))
        self.on_link: deque[tuple[Piece, RingSlot]] = deque()

    def to_device(self) -> None:
        self.run(self.upload)

    def to_host(self) -> None:
        self.run(self.download)

    def upload(self) -> None:
        while True:
            for piece in self.next_pieces():
                slot = self.free.pop()
                self.give(partial(piece.host_to_slot, slot.bytes), piece, slot)
            if self.at_work:
                piece, slot = self.take()
                piece.slot_to_device(slot.bytes)
                self.send(piece, slot)
            elif not self.on_link:
                return
            while self.on_link and (not self.at_work or len(self.on_link) > self.most_on_link or self.has_arrived()):
                piece, slot = self.receive()
                self.free.append(slot)
                self.advance(piece.nbytes)

    def download(self) -> None:
        while True:
            for piece in self.next_pieces():
                slot = self.free.pop()
                piece.device_to_slot(slot.bytes)
                self.send(piece, slot)
            while self.on_link and (len(self.at_work) < len(self.workers) or self.has_arrived()):
                piece, slot = self.receive()
                self.give(partial(piece.slot_to_host, slot.bytes), piece, slot)
            if not self.at_work:
                return
            piece, slot = self.take()
            self.free.append(slot)
            self.advance(piece.nbytes)

    def next_pieces(self) -> Iterator[Piece]:
        """As many pieces as there are free slots."""
        while self.free and (piece := next(self.pieces, None)) is not None:
            if self.cancelled:
                raise Cancelled
            yield piece

    def send(self, piece: Piece, slot: RingSlot) -> None:
        slot.event.record(self.stream)
        self.on_link.append((piece, slot))

    def has_arrived(self) -> bool:
        return bool(self.on_link[0][1].event.query())  # type: ignore[no-untyped-call]

    def receive(self) -> tuple[Piece, RingSlot]:
        piece, slot = self.on_link.popleft()
        slot.event.synchronize()
        return piece, slot


_MOST = 8192  # tensors in a bundle
_AT_ONCE = 8  # bundles; more slow each other down

Arrived = Callable[[Sequence[int], Sequence[Tensor]], None]


class Bundle(NamedTuple):
    """Contiguous tensors of one dtype, in groups of one shape; `keys` identify them."""

    groups: list[list[Tensor]]
    keys: list[int]
    nbytes: int
    empty: Sequence[list[Tensor]] = ()  # tensors on the device for the copies of each group

    def with_empty(self, device: torch.device) -> Bundle:
        return self._replace(empty=[empty_like_each(group[0], len(group), device) for group in self.groups])

    @property
    def dtype(self) -> torch.dtype:
        return self.groups[0][0].dtype

    def gather(self, out: Tensor) -> None:
        for group, part in zip(self.groups, self.parts(out), strict=True):
            if is_shared_out(part[0]):
                for tensor, row in zip(group, part, strict=True):
                    copy_alone(tensor, row)
            elif part.dim() > 1:
                torch.cat(group, out=part.flatten(0, 1))
            else:
                torch.stack(group, out=part)

    def spread(self, slab: Tensor) -> list[Tensor]:
        """Copies of the tensors, each with its own storage, from a flat tensor that they were gathered into."""
        parts = self.parts(slab)
        if not self.empty:
            return rows_apart(parts)
        return [copy for empty, part in zip(self.empty, parts, strict=True) for copy in filled(empty, part)]

    def parts(self, slab: Tensor) -> list[Tensor]:
        """The part of a flat tensor that belongs to each group, a row for each of its tensors."""
        parts = slab.split([len(group) * group[0].numel() for group in self.groups])  # type: ignore[no-untyped-call]
        return [part.view(len(group), *group[0].shape) for part, group in zip(parts, self.groups, strict=True)]


Kind = tuple[torch.dtype, Sequence[int]]  # and shape


def bundled(tensors: Sequence[Tensor], kinds: Iterable[Kind], keys: Sequence[int], most_bytes: int) -> Iterator[Bundle]:
    """Bundles of as many tensors as fit, with tensors of one dtype and shape together."""
    alike: defaultdict[Kind, list[int]] = defaultdict(list)
    for at, kind in enumerate(kinds):
        alike[kind].append(at)
    by_dtype: defaultdict[torch.dtype, list[list[int]]] = defaultdict(list)
    for (dtype, _), places in alike.items():
        by_dtype[dtype].append(places)
    for groups in by_dtype.values():
        bundle = Bundle([], [], 0)
        for places in groups:
            size, start = tensors[places[0]].nbytes, 0
            while start < len(places):
                stop = start + min(_MOST - len(bundle.keys), (most_bytes - bundle.nbytes) // size)
                if stop > start or not bundle.keys:
                    some = places[start : max(stop, start + 1)]
                    start += len(some)
                    bundle.groups.append([tensors[at] for at in some])
                    bundle.keys.extend([keys[at] for at in some])
                    bundle = bundle._replace(nbytes=bundle.nbytes + size * len(some))
                else:
                    yield bundle
                    bundle = Bundle([], [], 0)
        yield bundle


class Bundles(Traffic[Bundle]):
    """Bundles being copied, each by one worker through one slot; `arrived` is called with the keys and the copies.

    The caller's thread allocates the copies, as it does for large storages, since the allocator serves one thread at a
    time; the workers meanwhile gather the bundles. The channel's stream is the caller's, since the allocator reuses
    memory only on the stream that allocated it.
    """

    def __init__(self, channel: Channel, bundles: Iterable[Bundle], arrived: Arrived) -> None:
        super().__init__(channel._replace(slots=channel.slots[:_AT_ONCE]))
        self.bundles, self.arrived = bundles, arrived

    def to_device(self) -> None:
        # Not a generator: an error in it would keep this object.
        asked = iter(self.asked.get, None)
        self.run(self.ask_and_share, map(Bundle.with_empty, asked, repeat(self.stream.device)))

    def to_host(self) -> None:
        self.run(partial(self.share, self.download), self.bundles)

    def ask_and_share(self) -> None:
        for bundle in self.bundles:
            if self.cancelled:
                raise Cancelled
            self.asked.put(bundle)
        self.asked.put(None)
        self.share(self.upload)

    def share(self, carry: Callable[[Bundle, RingSlot], None]) -> None:
        while (bundle := self.handed.get()) is not None:
            if not self.free:
                self.receive()
            if self.cancelled:
                raise Cancelled
            slot = self.free.pop()
            self.give(partial(carry, bundle, slot), bundle, slot)
        while self.at_work:
            self.receive()

    def receive(self) -> None:
        bundle, slot = self.take()
        self.free.append(slot)
        self.advance(bundle.nbytes)

    def upload(self, bundle: Bundle, slot: RingSlot) -> None:
        slot.event.synchronize()  # its last copy has finished
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            host = slot.bytes[: bundle.nbytes].view(bundle.dtype)
            bundle.gather(host)
            slab = host.to(self.stream.device, non_blocking=True)
            slot.event.record(self.stream)
            self.arrived(bundle.keys, bundle.spread(slab))

    def download(self, bundle: Bundle, slot: RingSlot) -> None:
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            host = slot.bytes[: bundle.nbytes].view(bundle.dtype)
            slab = torch.empty_like(host, device=self.stream.device)
            bundle.gather(slab)
            host.copy_(slab, non_blocking=True)
            slot.event.record(self.stream)
            slot.event.synchronize()
            self.arrived(bundle.keys, bundle.spread(host))
