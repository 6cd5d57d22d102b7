"""Traffic through page-locked slots: what is at work, what is on the link, and how it ends, whatever happens."""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchmove.internals.interrupts import HeldInterrupts
from torchmove.internals.modes import plain_torch
from torchmove.internals.views import copy_alone, empty_like_each, filled, is_shared_out, rows_apart
from torchmove.moving.batches import Advance
from torchmove.moving.movers.workers import Done, Task, Workers

Load = TypeVar("Load")


class RingSlot(NamedTuple):
    bytes: Tensor
    event: torch.cuda.Event


class Cancelled(Exception):
    """The one who waited for the traffic waits no longer."""


class Channel(NamedTuple):
    """What traffic goes through: slots, threads that help, a stream; and who is told how far it has come."""

    slots: Sequence[Tensor]
    workers: Workers
    stream: torch.cuda.Stream
    advance: Advance


class Traffic(Generic[Load]):
    """Loads on their way in one direction."""

    def __init__(self, road: Channel) -> None:
        slots, self.workers, self.stream, self.advance = road
        self.free = [RingSlot(part, torch.cuda.Event()) for part in slots]  # type: ignore[no-untyped-call]
        # What the caller is asked to make ready, and what it has handed over. None: that was all.
        self.asked: SimpleQueue[Load | None] = SimpleQueue()
        self.handed: SimpleQueue[Load | None] = SimpleQueue()
        self.at_work: dict[int, tuple[Load, RingSlot]] = {}  # with the workers, by ticket
        self.done: Done = SimpleQueue()
        self.cancelled = False

    def give(self, task: Task, load: Load, slot: RingSlot) -> None:
        ticket = id(slot)
        self.at_work[ticket] = (load, slot)
        self.workers.give(task, ticket, self.done)

    def take(self) -> tuple[Load, RingSlot]:
        ticket, error = self.done.get()
        taken = self.at_work.pop(ticket)
        if error is not None:
            raise error
        return taken

    def settle(self) -> None:
        """Whatever happened: nobody writes into a slot or out of one any more."""
        while self.at_work:
            self.at_work.pop(self.done.get()[0])
        self.stream.synchronize()

    def run(self, work: Callable[[], None], loads: Iterable[Load] = ()) -> None:
        """In a thread of its own: a Ctrl-C meets the caller, who hands over loads and waits, and never the traffic."""
        errors: list[BaseException] = []
        running = threading.Lock()
        running.acquire()
        job = (work, self, errors, running)
        thread = threading.Thread(target=_work, args=job, name="torchmove traffic", daemon=True)
        handing = _HandingOver(self.handed)
        try:
            with HeldInterrupts() as interrupts, interrupts:
                thread.start()
            for load in loads:
                handing.put(load)
                if not running.locked():
                    break  # it has failed
            handing.put(None)
            running.acquire()
        except BaseException:
            self.cancelled = True
            raise
        finally:
            # Before Python 3.13 an interrupted join takes the thread for ended.
            with HeldInterrupts() as interrupts, interrupts:
                handing.put(None)
                if thread.ident is not None:
                    thread.join()
                del thread  # Python code runs as it goes, in which a Ctrl-C would be dropped
                if self.cancelled:
                    errors.clear()  # an error keeps its frames, and they the list with the error
        if errors:
            raise errors.pop()


class _HandingOver:
    """The caller's end of a queue. When it goes, the other end learns that that was all, whatever the caller has been
    kept from saying: a Ctrl-C upon a Ctrl-C may skip any line."""

    def __init__(self, queue: SimpleQueue[Any]) -> None:
        self.put = queue.put

    def __del__(self) -> None:
        self.put(None)


# No closure: the error keeps its frames, a frame its function, and that would keep what it closes over.
def _work(
    work: Callable[[], None], traffic: Traffic[Load], errors: list[BaseException], running: threading.Lock
) -> None:
    try:
        _drive(work, traffic)
    except BaseException as error:
        errors.append(error)
    finally:
        traffic.asked.put(None)  # the caller may still wait to be asked
        running.release()


@plain_torch
def _drive(work: Callable[[], None], traffic: Traffic[Load]) -> None:
    with torch.cuda.device(traffic.stream.device), torch.cuda.stream(traffic.stream):
        try:
            work()
        finally:
            traffic.settle()


class Piece(NamedTuple):
    """Bytes at an address in host memory, and their place on the device. `owner` keeps the address valid."""

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
    """Pieces on their way. Workers copy between slots and host memory, the copy engine between slots and the device."""

    def __init__(self, road: Channel, pieces: Iterable[Piece]) -> None:
        super().__init__(road)
        self.pieces = iter(pieces)
        self.most_on_link = max(1, len(self.free) - len(self.workers))
        self.on_link: deque[tuple[Piece, RingSlot]] = deque()

    def to_device(self) -> None:
        self.run(self.up)

    def to_host(self) -> None:
        self.run(self.down)

    def up(self) -> None:
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

    def down(self) -> None:
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
        """As many as there are free slots."""
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
_AT_ONCE = 8  # bundles; more are in each other's way

Arrived = Callable[[Sequence[int], Sequence[Tensor]], None]


class Bundle(NamedTuple):
    """Contiguous tensors of one dtype, in groups of one shape; `keys` tell them apart."""

    groups: list[list[Tensor]]
    keys: list[int]
    nbytes: int
    rooms: Sequence[list[Tensor]] = ()  # for the copies of each group, on a device

    def with_rooms(self, device: torch.device) -> Bundle:
        return self._replace(rooms=[empty_like_each(group[0], len(group), device) for group in self.groups])

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
        """Copies like the tensors, each with a storage of its own, from a slab into which such were gathered."""
        parts = self.parts(slab)
        if not self.rooms:
            return rows_apart(parts)
        return [copy for rooms, part in zip(self.rooms, parts, strict=True) for copy in filled(rooms, part)]

    def parts(self, slab: Tensor) -> list[Tensor]:
        """The place of each group in a flat tensor, a row for each of its tensors."""
        parts = slab.split([len(group) * group[0].numel() for group in self.groups])  # type: ignore[no-untyped-call]
        return [part.view(len(group), *group[0].shape) for part, group in zip(parts, self.groups, strict=True)]


Kind = tuple[torch.dtype, Sequence[int]]  # and shape


def bundled(tensors: Sequence[Tensor], kinds: Iterable[Kind], keys: Sequence[int], most_bytes: int) -> Iterator[Bundle]:
    """As many in a bundle as fit, those of one kind together."""
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
    """Bundles on their way, each by a worker and through a slot of its own; `arrived` is told the keys and the copies.

    Memory for the copies is asked for by the caller, as it is for large blocks: however many ask for it, they are
    served one after the other. Meanwhile the bundles are put together. The given stream is the caller's: memory of
    another one would be of no use to it later.
    """

    def __init__(self, road: Channel, bundles: Iterable[Bundle], arrived: Arrived) -> None:
        super().__init__(road._replace(slots=road.slots[:_AT_ONCE]))
        self.bundles, self.arrived = bundles, arrived

    def to_device(self) -> None:
        # No generator: it would close over this object, and an error in it keep that.
        asked = iter(self.asked.get, None)
        self.run(self.ask_and_share, map(Bundle.with_rooms, asked, repeat(self.stream.device)))

    def to_host(self) -> None:
        self.run(partial(self.share, self.down), self.bundles)

    def ask_and_share(self) -> None:
        for bundle in self.bundles:
            if self.cancelled:
                raise Cancelled
            self.asked.put(bundle)
        self.asked.put(None)
        self.share(self.up)

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

    def up(self, bundle: Bundle, slot: RingSlot) -> None:
        slot.event.synchronize()  # what it held last has crossed the link
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            host = slot.bytes[: bundle.nbytes].view(bundle.dtype)
            bundle.gather(host)
            slab = host.to(self.stream.device, non_blocking=True)
            slot.event.record(self.stream)
            self.arrived(bundle.keys, bundle.spread(slab))

    def down(self, bundle: Bundle, slot: RingSlot) -> None:
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            host = slot.bytes[: bundle.nbytes].view(bundle.dtype)
            slab = torch.empty_like(host, device=self.stream.device)
            bundle.gather(slab)
            host.copy_(slab, non_blocking=True)
            slot.event.record(self.stream)
            slot.event.synchronize()
            self.arrived(bundle.keys, bundle.spread(host))
