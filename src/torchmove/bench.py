"""Measure how fast a training state moves on this machine, with several methods in turns.

Each method has a state of its own, a transformer with AdamW in mid-training, so that none reuses the memory of
another. The reference is `Module.to` with a loop over `optimizer.state`; the limit is a copy of pinned memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from torchmove.chain import Thoroughness, move
from torchmove.devices import (
    NoSuchDevice,
    device_module,
    free_memory,
    release_cached_memory,
    resolve_device,
    synchronize_device,
)
from torchmove.errors import CannotMeasure
from torchmove.formatting import readable_bytes
from torchmove.moving.movers.traffic import cores
from torchmove.results import Result

CPU = torch.device("cpu")
LINK_BYTES = 1 << 29  # torch rounds pinned memory up to a power of two
SAMPLE_SECONDS = 0.005

Go = Callable[[torch.device], Any]  # moves a state to a device
Tell = Callable[[str], None]


# ---------------------------------------------------------------- states, and ways to move them


class TrainingState(NamedTuple):
    """A model and its optimizer."""

    model: nn.Module
    optimizer: Optimizer

    def tensors(self) -> list[Tensor]:
        """The parameters and the optimizer's tensors."""
        inside = (value for state in self.optimizer.state.values() for value in state.values())
        return [*self.model.parameters(), *(value for value in inside if isinstance(value, Tensor))]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def transformer(nbytes: int) -> TrainingState:
    """A transformer of about 24 layers after a step of AdamW, about `nbytes` in total, on the CPU."""
    parameters = nbytes // 12  # of 4 bytes each, and AdamW keeps two more values of 4 bytes for each
    width = max(8, round((parameters / (12 * 24)) ** 0.5 / 8) * 8)
    layers = max(1, round(parameters / (12 * width**2 + 13 * width)))
    model = nn.Sequential(*(nn.TransformerEncoderLayer(width, 8, 4 * width, device="meta") for _ in range(layers)))
    return in_mid_training(filled(model))


def filled(model: nn.Module) -> nn.Module:
    """Fill a model made on the meta device with values; random ones would take longer than the moves."""
    model.to_empty(device=CPU)
    for parameter in model.parameters():
        torch.linspace(-0.1, 0.1, parameter.numel(), out=parameter.data.view(-1))
    return model


def in_mid_training(model: nn.Module) -> TrainingState:
    """The model after a step of AdamW, without gradients."""
    optimizer = AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer.step()
    optimizer.zero_grad()
    return TrainingState(model, optimizer)


def by_module_to(state: TrainingState, to: torch.device) -> None:
    """Move without torchmove: Module.to and a loop over the optimizer's state."""
    state.model.to(to)
    for values in state.optimizer.state.values():
        for key, value in values.items():
            if isinstance(value, Tensor):
                values[key] = value.to(to)


class ByTorchmove:
    """Move with tm.move, and record which mover it used for each device."""

    def __init__(self, state: TrainingState, verify: Thoroughness = "quick") -> None:
        self.state, self.verify = state, verify
        self.movers: dict[torch.device, str] = {}

    def __call__(self, to: torch.device) -> None:
        model, optimizer = self.state
        self.movers[to] = move(model, optimizer, to=to, verify=self.verify, progress=False).mover


class Link:
    """Copy pinned memory to the device and back: the limit of the link."""

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


def warm_up(device: torch.device) -> None:
    """Initialize the device, so that its startup time does not count as part of a move."""
    torch.ones(1).to(device).cpu()


def trip(go: Go, device: torch.device) -> Trip:
    return Trip(_seconds(go, device, device), _seconds(go, CPU, device))


def take_turns(
    ways: Mapping[str, Go], device: torch.device, *, turns: int, tell: Tell = lambda _: None
) -> dict[str, list[Trip]]:
    """The trips of each way, measured in turns so that a slow phase of the machine affects all of them."""
    trips: dict[str, list[Trip]] = {name: [] for name in ways}
    for turn in range(turns):
        tell(f"turn {turn + 1} of {turns}")
        for name, go in ways.items():
            trips[name].append(trip(go, device))
    return trips


def of_each(trips: Mapping[str, Sequence[Trip]], figure: Callable[[Sequence[float]], float]) -> dict[str, Trip]:
    """A statistic of each way's trips, such as the median, there and back."""
    return {name: Trip(*map(figure, zip(*those, strict=True))) for name, those in trips.items()}


def _seconds(go: Go, to: torch.device, device: torch.device) -> float:
    synchronize_device(device)
    began = time.perf_counter()
    go(to)
    synchronize_device(device)
    return time.perf_counter() - began


# ---------------------------------------------------------------- memory


class HostPeak:
    """The process's peak resident memory, sampled every 5 ms by a thread. Linux only.

    A shorter peak can be missed, and memory that a driver maps (`pin_memory=True`) need not be counted.
    """

    def __init__(self) -> None:
        self.nbytes: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> HostPeak:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self.sample()

    def sample(self) -> None:
        now = resident_bytes()
        if now is not None:
            self.nbytes = max(now, self.nbytes or 0)

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.sample()


def resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


class Extra(NamedTuple):
    """Peak memory of a move beyond the state itself; None where it cannot be measured."""

    host: int | None
    device: int | None


def first_trip(go: Go, device: torch.device, nbytes: int) -> tuple[Trip, tuple[Extra, Extra]]:
    """Time and peak memory of a trip there and back. Host memory is counted from here, with the state on the host."""
    at_start = resident_bytes()
    there, there_host, grown = _watched(go, device, device)
    back, back_host, back_grown = _watched(go, CPU, device)
    extras = (
        Extra(_beyond(there_host, at_start), _beyond(grown, nbytes)),
        Extra(_beyond(back_host, at_start), back_grown),
    )
    return Trip(there, back), extras


def _watched(go: Go, to: torch.device, device: torch.device) -> tuple[float, int | None, int | None]:
    """Seconds, the host's peak memory, and how much the device's peak exceeded its memory at the start."""
    counter = _counter(device)
    before = counter.memory_allocated(device) if counter else None
    if counter:
        counter.reset_peak_memory_stats(device)
    with HostPeak() as host:
        seconds = _seconds(go, to, device)
    return seconds, host.nbytes, _beyond(counter.max_memory_allocated(device), before) if counter else None


def _counter(device: torch.device) -> Any:
    """torch's module that counts a device's memory, or None."""
    module = device_module(device)
    return module if hasattr(module, "reset_peak_memory_stats") else None


def _beyond(peak: int | None, known: int | None) -> int | None:
    return None if peak is None or known is None else max(0, peak - known)


TURNS = 3
# Module.to and tm.move run once and then in every turn; tm.move(verify="bytes") counts as two.
_TRIPS = 2 * (1 + TURNS) + 2 * TURNS
_SECONDS = 60
_PROBE_BYTES = 64_000_000


# ---------------------------------------------------------------- ways, compared


class Way(NamedTuple):
    """A trip and the bytes it moved; `beside`: the name of the way it is compared with."""

    trip: Trip
    nbytes: int
    beside: str | None = None


def ways_of(trips: Mapping[str, Trip], nbytes: int, beside: Mapping[str, str]) -> dict[str, Way]:
    """The trips of one benchmark as ways; the way named "link" copies LINK_BYTES."""
    return {name: Way(each, LINK_BYTES if name == "link" else nbytes, beside.get(name)) for name, each in trips.items()}


def compared(ways: Mapping[str, Way]) -> dict[str, Any]:
    """The figures of each way, there and back."""
    return {name: {leg: _leg(ways, name, leg) for leg in Trip._fields} for name in ways}


def _leg(ways: Mapping[str, Way], name: str, leg: str) -> dict[str, float | None]:
    def share_of(other: str | None) -> float | None:
        return mine / _rate(ways[other], leg) if other and other in ways else None

    mine = _rate(ways[name], leg)
    return {
        "seconds": getattr(ways[name].trip, leg),
        "gb_per_second": mine,
        "times_as_fast": share_of(ways[name].beside),
        "share_of_link": share_of("link"),
    }


def _rate(way: Way, leg: str) -> float:
    return float(way.nbytes / getattr(way.trip, leg) / 1e9)


# ---------------------------------------------------------------- the measurement


@dataclass(frozen=True, eq=False, repr=False)
class Bench(Result):
    """The results of a benchmark."""

    device: torch.device
    machine: str
    state: str
    nbytes: int
    tensors: int
    ways: Mapping[str, Way]
    movers: tuple[str, str]  # there and back
    extra: tuple[Extra, Extra]


_BESIDE = {"move_first": "usual_first", "move": "usual", "move_bytes": "usual"}


def measure(to: torch.device | str = "auto", nbytes: int | None = None, *, tell: Tell = lambda _: None) -> Bench:
    """Measure this machine. `nbytes`: size of the state; by default one that takes about a minute.

    Raises CannotMeasure if there is no accelerator or too little memory.
    """
    device = accelerator(to)
    size = _affordable(nbytes, device, tell)
    tell(f"creating two states of {readable_bytes(size)}")
    mine, theirs = transformer(size), transformer(size)
    ours, usually = ByTorchmove(mine), partial(by_module_to, theirs)
    tell("first moves")
    warm_up(device)
    first, extra = first_trip(ours, device, mine.nbytes)
    release_cached_memory(device)  # the next move would otherwise find its memory in the cache
    trips = {"usual_first": trip(usually, device), "move_first": first}
    goes: dict[str, Go] = {"usual": usually, "move": ours, "move_bytes": ByTorchmove(mine, "bytes")}
    if device.type == "cuda":
        goes["link"] = Link(device)
    trips |= of_each(take_turns(goes, device, turns=TURNS, tell=tell), median)
    return Bench(
        device=device,
        machine=machine(device),
        state="transformer with AdamW after a step",
        nbytes=mine.nbytes,
        tensors=len(mine.tensors()),
        ways=ways_of(trips, mine.nbytes, _BESIDE),
        movers=(ours.movers[device], ours.movers[CPU]),
        extra=extra,
    )


# ---------------------------------------------------------------- the machine


def accelerator(to: torch.device | str) -> torch.device:
    """The device to measure; "auto": the machine's accelerator."""
    try:
        device = resolve_device(to)
    except NoSuchDevice as error:
        raise CannotMeasure(f"{error}. Fix: --to auto takes the machine's accelerator") from None
    if device == CPU:
        why = "this machine has no accelerator" if to == "auto" else "the state is on the CPU already"
        raise CannotMeasure(f"{why}. Fix: run torchmove bench on a machine with an accelerator")
    return device


def machine(device: torch.device) -> str:
    """A description of the machine, without its host name."""
    module = device_module(device)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    return f"{name}, {cores()} cores, torch {torch.__version__}"


def most_bytes(device: torch.device) -> int | None:
    """A quarter of the free memory: the host holds two states, and sometimes a copy."""
    free = [each for each in map(free_memory, (CPU, device)) if each is not None]
    return min(free) // 4 if free else None


def _affordable(asked: int | None, device: torch.device, tell: Tell) -> int:
    most = most_bytes(device)
    if asked is None:
        takes_a_minute = _takes_a_minute(device, tell)
        return takes_a_minute if most is None else min(most, takes_a_minute)
    if most is not None and asked > most:
        why = f"a state of {readable_bytes(asked)} is more than a quarter of the free memory of the CPU or {device}"
        raise CannotMeasure(f"{why}. Fix: --bytes of {readable_bytes(most)} or less")
    return asked


def _takes_a_minute(device: torch.device, tell: Tell) -> int:
    tell("finding the size that takes a minute")
    warm_up(device)
    probe = partial(by_module_to, transformer(_PROBE_BYTES))
    trip(probe, device)
    return int(_PROBE_BYTES * _SECONDS / sum(trip(probe, device)) / _TRIPS)
