"""States to move, ways to move them, and what a trip there and back takes: time, and memory beside the state's own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from torchmove.chain import Thoroughness, move
from torchmove.devices import device_module, synchronize_device

CPU = torch.device("cpu")
LINK_BYTES = 1 << 29  # torch rounds pinned memory up to a power of two
SAMPLE_SECONDS = 0.005

Go = Callable[[torch.device], Any]  # takes a state to a device
Tell = Callable[[str], None]


# ---------------------------------------------------------------- states, and ways to move them


class State(NamedTuple):
    model: nn.Module
    optimizer: Optimizer

    def tensors(self) -> list[Tensor]:
        """The parameters and the optimizer's tensors."""
        inside = (value for state in self.optimizer.state.values() for value in state.values())
        return [*self.model.parameters(), *(value for value in inside if isinstance(value, Tensor))]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def transformer(nbytes: int) -> State:
    """A transformer of about 24 layers with AdamW in mid-training, about `nbytes` together, on the CPU."""
    parameters = nbytes // 12  # AdamW keeps two more numbers for each, of four bytes
    width = max(8, round((parameters / (12 * 24)) ** 0.5 / 8) * 8)
    layers = max(1, round(parameters / (12 * width**2 + 13 * width)))
    model = nn.Sequential(*(nn.TransformerEncoderLayer(width, 8, 4 * width, device="meta") for _ in range(layers)))
    return in_mid_training(filled(model))


def filled(model: nn.Module) -> nn.Module:
    """A model made on the meta device, with numbers: random ones would take longer than the moves."""
    model.to_empty(device=CPU)
    for parameter in model.parameters():
        torch.linspace(-0.1, 0.1, parameter.numel(), out=parameter.data.view(-1))
    return model


def in_mid_training(model: nn.Module) -> State:
    """After a step of AdamW, its gradients dropped."""
    optimizer = AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer.step()
    optimizer.zero_grad()
    return State(model, optimizer)


def usual(state: State, to: torch.device) -> None:
    """What is written where there is no torchmove."""
    state.model.to(to)
    for values in state.optimizer.state.values():
        for key, value in values.items():
            if isinstance(value, Tensor):
                values[key] = value.to(to)


class Ours:
    """tm.move; remembers which mover took the state where."""

    def __init__(self, state: State, verify: Thoroughness = "quick") -> None:
        self.state, self.verify = state, verify
        self.movers: dict[torch.device, str] = {}

    def __call__(self, to: torch.device) -> None:
        model, optimizer = self.state
        self.movers[to] = move(model, optimizer, to=to, verify=self.verify, progress=False).mover


class Link:
    """Pinned memory to the device and back: nothing is faster."""

    def __init__(self, device: torch.device) -> None:
        self._host = torch.zeros(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
        self._away = torch.zeros(LINK_BYTES, dtype=torch.uint8, device=device)

    def __call__(self, to: torch.device) -> None:
        source, target = (self._away, self._host) if to == CPU else (self._host, self._away)
        target.copy_(source, non_blocking=True)


# ---------------------------------------------------------------- time


class Trip(NamedTuple):
    """Seconds to the device, and back to the CPU."""

    there: float
    back: float


def wake(device: torch.device) -> None:
    """A device that has not been used takes its time to start; that is no part of a move."""
    torch.ones(1).to(device).cpu()


def trip(go: Go, device: torch.device) -> Trip:
    return Trip(_seconds(go, device, device), _seconds(go, CPU, device))


def take_turns(
    ways: Mapping[str, Go], device: torch.device, *, turns: int, tell: Tell = lambda _: None
) -> dict[str, list[Trip]]:
    """Each way's trips. What slows the machine down for a while slows all ways."""
    trips: dict[str, list[Trip]] = {name: [] for name in ways}
    for turn in range(turns):
        tell(f"turn {turn + 1} of {turns}")
        for name, go in ways.items():
            trips[name].append(trip(go, device))
    return trips


def of_each(trips: Mapping[str, Sequence[Trip]], figure: Callable[[Sequence[float]], float]) -> dict[str, Trip]:
    """A figure of each way's trips, such as their median, there and back."""
    return {name: Trip(*map(figure, zip(*those, strict=True))) for name, those in trips.items()}


def _seconds(go: Go, to: torch.device, device: torch.device) -> float:
    synchronize_device(device)
    began = time.perf_counter()
    go(to)
    synchronize_device(device)
    return time.perf_counter() - began


# ---------------------------------------------------------------- memory


class HostPeak:
    """The most memory that the process had in use. A thread looks every 5 ms at what the system counts as resident.

    A shorter peak can be missed, and what a driver maps by itself (`pin_memory=True`) need not be counted. Linux only.
    """

    def __init__(self) -> None:
        self.nbytes: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> HostPeak:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        now = resident_bytes()
        if now is not None:
            self.nbytes = max(now, self.nbytes or 0)

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.look()


def resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


class Extra(NamedTuple):
    """The most memory that a move took beyond the state itself; None where that cannot be known."""

    host: int | None
    device: int | None


def first_trip(go: Go, device: torch.device, nbytes: int) -> tuple[Trip, tuple[Extra, Extra]]:
    """There and back, watched. Host memory counts from here, where the host holds all of the state."""
    home = resident_bytes()
    there, there_host, grown = _watched(go, device, device)
    back, back_host, back_grown = _watched(go, CPU, device)
    extras = Extra(_beyond(there_host, home), _beyond(grown, nbytes)), Extra(_beyond(back_host, home), back_grown)
    return Trip(there, back), extras


def _watched(go: Go, to: torch.device, device: torch.device) -> tuple[float, int | None, int | None]:
    """Seconds, the host's peak, and how far the device rose above where it began."""
    counter = _counter(device)
    before = counter.memory_allocated(device) if counter else None
    if counter:
        counter.reset_peak_memory_stats(device)
    with HostPeak() as host:
        seconds = _seconds(go, to, device)
    return seconds, host.nbytes, _beyond(counter.max_memory_allocated(device), before) if counter else None


def _counter(device: torch.device) -> Any:
    """What torch counts a device's memory with, or None."""
    module = device_module(device)
    return module if hasattr(module, "reset_peak_memory_stats") else None


def _beyond(peak: int | None, known: int | None) -> int | None:
    return None if peak is None or known is None else max(0, peak - known)
