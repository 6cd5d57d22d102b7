"""How fast is this machine? A training state goes to the device and back by several ways that take turns.

The state is a transformer with AdamW in mid-training, one for each way of moving it, so that no way finds what another
has left. `Module.to` with a loop over `optimizer.state` is the usual way; copies of pinned memory are the most that the
link can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch

from torchmove._trips import (
    CPU,
    LINK_BYTES,
    Extra,
    Go,
    Link,
    Ours,
    Tell,
    Trip,
    first_trip,
    of_each,
    take_turns,
    transformer,
    trip,
    usual,
    wake,
)
from torchmove.devices import NoSuchDevice, device_module, free_memory, release_cached_memory, resolve_device
from torchmove.errors import CannotMeasure
from torchmove.formatting import readable_bytes
from torchmove.moving.movers.workers import cores
from torchmove.results import Result

TURNS = 3
# The usual way goes once and then with every turn, ours too; the one that compares bytes is taken for twice as long.
_TRIPS = 2 * (1 + TURNS) + 2 * TURNS
_SECONDS = 60
_PROBE_BYTES = 64_000_000


# ---------------------------------------------------------------- ways, compared


class Way(NamedTuple):
    """A trip with so many bytes; `beside`: the way that it is compared with."""

    trip: Trip
    nbytes: int
    beside: str | None = None


def ways_of(trips: Mapping[str, Trip], nbytes: int, beside: Mapping[str, str]) -> dict[str, Way]:
    """Trips of one run, with the way that each is compared with; the one named "link" has bytes of its own."""
    return {name: Way(each, LINK_BYTES if name == "link" else nbytes, beside.get(name)) for name, each in trips.items()}


def compared(ways: Mapping[str, Way]) -> dict[str, Any]:
    """Each way's figures, there and back."""
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
    """What was measured."""

    device: torch.device
    machine: str
    state: str
    nbytes: int
    tensors: int
    ways: Mapping[str, Way]
    movers: tuple[str, str]  # there and back
    extra: tuple[Extra, Extra]


_BESIDE = {"move_first": "usual_first", "move": "usual", "move_bytes": "usual"}


def measure(to: torch.device | str | None = None, nbytes: int | None = None, *, tell: Tell = lambda _: None) -> Bench:
    """Measure this machine. `nbytes`: of the state; by default what takes about a minute.

    Raises CannotMeasure where there is no accelerator or no room.
    """
    device = accelerator(to)
    size = _affordable(nbytes, device, tell)
    tell(f"making two states of {readable_bytes(size)}")
    mine, theirs = transformer(size), transformer(size)
    ours, usually = Ours(mine), partial(usual, theirs)
    tell("the first moves")
    wake(device)
    first, extra = first_trip(ours, device, mine.nbytes)
    release_cached_memory(device)  # or the next to come would find its memory ready
    trips = {"usual_first": trip(usually, device), "move_first": first}
    goes: dict[str, Go] = {"usual": usually, "move": ours, "move_bytes": Ours(mine, "bytes")}
    if device.type == "cuda":
        goes["link"] = Link(device)
    trips |= of_each(take_turns(goes, device, turns=TURNS, tell=tell), median)
    return Bench(
        device=device,
        machine=machine(device),
        state="a transformer with AdamW in mid-training",
        nbytes=mine.nbytes,
        tensors=len(mine.tensors()),
        ways=ways_of(trips, mine.nbytes, _BESIDE),
        movers=(ours.movers[device], ours.movers[CPU]),
        extra=extra,
    )


# ---------------------------------------------------------------- the machine


def accelerator(to: torch.device | str | None) -> torch.device:
    """The device to measure; None: the machine's accelerator."""
    try:
        device = resolve_device(to or "auto")
    except NoSuchDevice as error:
        raise CannotMeasure(f"{error}; name one that is there") from None
    if device == CPU:
        why = "this machine has no accelerator" if to is None else "the state starts on the cpu"
        raise CannotMeasure(f"{why}: there is nothing to move to; run it where there is an accelerator")
    return device


def machine(device: torch.device) -> str:
    """In words, without names of its own."""
    module = device_module(device)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    return f"{name}, {cores()} cores, torch {torch.__version__}"


def most_bytes(device: torch.device) -> int | None:
    """A quarter of what is free: the host holds two states, and sometimes a copy."""
    free = [each for each in map(free_memory, (CPU, device)) if each is not None]
    return min(free) // 4 if free else None


def _affordable(asked: int | None, device: torch.device, tell: Tell) -> int:
    most = most_bytes(device)
    if asked is None:
        takes_a_minute = _takes_a_minute(device, tell)
        return takes_a_minute if most is None else min(most, takes_a_minute)
    if most is not None and asked > most:
        said = f"a state of {readable_bytes(asked)} is more than a quarter of what is free on the cpu or {device}"
        raise CannotMeasure(f"{said}; ask for {readable_bytes(most)} or less")
    return asked


def _takes_a_minute(device: torch.device, tell: Tell) -> int:
    tell("how large a state takes a minute?")
    wake(device)
    probe = partial(usual, transformer(_PROBE_BYTES))
    trip(probe, device)
    return int(_PROBE_BYTES * _SECONDS / sum(trip(probe, device)) / _TRIPS)
