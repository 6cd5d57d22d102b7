"""Traffic through page-locked slots: what is at work, what is on the link, and how it ends, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchmove._interrupts import HeldInterrupts
from torchmove._records import Advance
from torchmove._storage import plain_torch
from torchmove.staging.workers import Done, Task, Workers

Load = TypeVar("Load")


class Slot(NamedTuple):
    bytes: Tensor
    event: torch.cuda.Event


class Cancelled(Exception):
    """The one who waited for the traffic waits no longer."""


class Road(NamedTuple):
    """What traffic goes through: slots, threads that help, a stream; and who is told how far it has come."""

    slots: Sequence[Tensor]
    workers: Workers
    stream: torch.cuda.Stream
    advance: Advance


class Traffic(Generic[Load]):
    """Loads on their way in one direction."""

    def __init__(self, road: Road) -> None:
        slots, self.workers, self.stream, self.advance = road
        self.free = [Slot(part, torch.cuda.Event()) for part in slots]  # type: ignore[no-untyped-call]
        # What the caller is asked to make ready, and what it has handed over. None: that was all.
        self.asked: SimpleQueue[Load | None] = SimpleQueue()
        self.handed: SimpleQueue[Load | None] = SimpleQueue()
        self.at_work: dict[int, tuple[Load, Slot]] = {}  # with the workers, by ticket
        self.done: Done = SimpleQueue()
        self.cancelled = False

    def give(self, task: Task, load: Load, slot: Slot) -> None:
        ticket = id(slot)
        self.at_work[ticket] = (load, slot)
        self.workers.give(task, ticket, self.done)

    def take(self) -> tuple[Load, Slot]:
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
